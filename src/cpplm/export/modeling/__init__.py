"""Hand-written modeling code of an export; `remote_code.py` puts it beside the model's own source."""
