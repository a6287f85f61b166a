// The server's API. What goes wrong is thrown as an ApiError with words that a person can use.
import { events } from '/page/sse.js';

export class ApiError extends Error {
  constructor(message, status = 0, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

let key = '';
export function useKey(value) {
  key = value.trim();
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('The server does not answer. Is it still running?');
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

async function errorOf(response) {
  const text = await response.text().catch(() => '');
  let said = null;
  try {
    said = JSON.parse(text);
  } catch {
    // Not JSON: the status has to do.
  }
  if (said?.error?.message) return new ApiError(said.error.message, response.status, said.error.param);
  if (said?.reason) return new ApiError(said.reason, response.status);
  return new ApiError(`The server answered with status ${response.status}.`, response.status);
}

const post = (path, body, signal) =>
  call(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body), signal });

export const getJson = async (path) => (await call(path, { cache: 'no-store' })).json();
export const getText = async (path) => (await call(path, { cache: 'no-store' })).text();

export const models = async () => (await getJson('/v1/models')).data;
export const selections = () => getJson('/selection');
export const ranks = () => getJson('/ranks');
export const metrics = () => getText('/metrics');

// Resolves when a request would be served; throws the reason why not.
export const ready = () => getJson('/ready');

export const tokenize = async (messages) => (await (await post('/tokenize', { messages })).json()).tokens;
export const detokenize = async (tokens) => (await (await post('/detokenize', { tokens })).json()).prompt;

// The chunks of a streamed chat completion.
export async function* chatChunks(body, signal) {
  const response = await post('/v1/chat/completions', { ...body, stream: true }, signal);
  for await (const data of events(response)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 0, chunk.error.param);
    yield chunk;
  }
  throw new ApiError('The stream broke off before the answer was complete.');
}
