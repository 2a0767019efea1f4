// The server's HTTP API: text as it is written, compilations, models. Addresses are relative to the page, so that it
// works behind a proxy that puts it into a folder.

/** An answer that is no success; `code` as in OpenAI's errors. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** Whether somebody asked for this to end. */
export const isCancel = (error) => error?.name === "AbortError";

// Half of a surrogate pair, which an editor can hold, is no text for the server.
const whole = (_, value) => (typeof value === "string" ? value.toWellFormed() : value);

async function send(path, { body, key, signal }) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body, whole), signal });
  } catch (error) {
    if (isCancel(error)) throw error;
    throw new ApiError("The server does not answer.");
  }
  if (response.ok) return response;
  const retryAfter = Number(response.headers.get("Retry-After")) || 0;
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch (error) {
    if (isCancel(error)) throw error;
  }
  const message = typeof details.message === "string" ? details.message : `The server answers ${response.status}.`;
  throw new ApiError(message, { status: response.status, code: details.code ?? null, retryAfter });
}

/** The data of each server-sent event, up to "[DONE]"; the connection is closed when the loop over it is left. */
export async function* events(stream) {
  const reader = stream.getReader(), decoder = new TextDecoder();
  let rest = "", data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the stream ended early");
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        if (line || !data.length) continue;
        const event = data.join("\n");
        data = [];
        if (event === "[DONE]") return;
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already, which its reader was told
  }
}

// {text, calls, reason, tokens} of each piece; `pick` finds the text in a choice, `calls` are those of tools of the server,
// {call, result}. `tokens`, of prompt and answer together, comes
// with the last one if it was asked for.
async function* pieces(path, { body, ...options }, pick) {
  const response = await send(path, { body: { ...body, stream: true }, ...options });
  try {
    for await (const event of events(response.body)) {
      const chunk = JSON.parse(event);
      if (chunk.error) throw new ApiError(chunk.error.message, chunk.error);
      const choice = chunk.choices?.[0], tokens = chunk.usage?.total_tokens ?? null;
      const calls = choice?.delta?.server_tool_calls ?? [];
      if (choice) yield { text: pick(choice) ?? "", calls, reason: choice.finish_reason ?? null, tokens };
      else if (tokens) yield { text: "", calls, reason: null, tokens };
    }
  } catch (error) {
    if (isCancel(error) || error instanceof ApiError) throw error;
    throw new ApiError("The connection to the server was lost.");
  }
}

/** What follows a prompt, or what belongs between it and a `suffix`. */
export const complete = (options) => pieces("v1/completions", options, (choice) => choice.text);

/** The answer to a conversation. */
export const chat = (options) => pieces("v1/chat/completions", options, (choice) => choice.delta?.content);

/**
 * The model that is served: its `id`, `max_model_len` (tokens of its context), `supports_fim` (whether it takes a suffix) and
 * `stage` (of its training; "base" has seen no conversation).
 */
export async function servedModel(options) {
  const { data } = await (await send("v1/models", options)).json();
  return data[0];
}

/** What the compiler says; waits its turn where others compile. */
export async function compile(options) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await (await send("api/compile", options)).json();
    } catch (error) {
      if (error.code !== "busy" || attempt === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.retryAfter));
    }
  }
}
