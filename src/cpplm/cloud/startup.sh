#!/bin/bash
# Start-up script of a machine that trains: fetches cpplm, compares its hash, and runs `cpplm.cloud.node`.
# Nothing of a run stands in here: all values are attributes in the machine's metadata.
set -euo pipefail
metadata="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
get() {
  curl -sSf --noproxy '*' --retry 8 --retry-connrefused --max-time 20 \
    -H 'Metadata-Flavor: Google' "$metadata/$1"
}

work=${CPPLM_WORK:-/var/lib/cpplm}
mkdir -p "$work"
cd "$work"
CPPLM_RUN=$(get attributes/cpplm-run)
CPPLM_ATTEMPT=$(get attributes/cpplm-attempt)
CPPLM_WORKER=$(get attributes/agent-worker-number 2> /dev/null || echo 0) # of a slice with several hosts
export CPPLM_RUN CPPLM_ATTEMPT CPPLM_WORKER
package=$(get attributes/cpplm-package)
sha256=$(get attributes/cpplm-package-sha256)
python=$(get attributes/cpplm-python)

file=${package##*/}
if [[ $package == gs://* ]]; then
  token=$(get service-accounts/default/token | sed -n 's/.*"access_token" *: *"\([^"]*\)".*/\1/p')
  curl -sSf --retry 8 -H @- -o "$file" "https://storage.googleapis.com/${package#gs://}" \
    <<< "Authorization: Bearer $token"
else
  curl -sSf --retry 8 --retry-connrefused -o "$file" -- "$package"
fi
echo "$sha256 *$file" | sha256sum --check --strict --quiet -

if [[ $python != install ]]; then # the image has the dependencies
  tar -xzf "$file"
  export PYTHONPATH=$work/cpplm/src${PYTHONPATH:+:$PYTHONPATH}
else
  if [[ ! -x venv/bin/python ]]; then
    if found=$(command -v python3.12 || command -v python3.11); then
      "$found" -m venv venv
    else # the image's Python is too old: uv brings one
      python3 -m pip install --quiet uv
      python3 -m uv venv --quiet --seed --python 3.12 venv
    fi
  fi
  if [[ $file == *.tar.gz ]]; then
    tar -xzf "$file"
    venv/bin/pip install --quiet -c cpplm/constraints.txt "./cpplm[tpu]"
  else
    venv/bin/pip install --quiet "./$file[tpu]"
  fi
  python=$work/venv/bin/python
fi
exec "$python" -m cpplm.cloud.node
