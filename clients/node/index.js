// A client of a Winnow server's gRPC port; index.d.ts says what each part is.
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

// In a package the .proto files lie beside this one; in the project's tree in a folder of their own.
const root = ['proto', '../../proto'].map((path) => fileURLToPath(new URL(path, import.meta.url))).find(existsSync);
const files = ['admin', 'generation', 'model', 'tokenizer'].map((name) => `winnow/v1/${name}.proto`);
const { v1 } = grpc.loadPackageDefinition(
  loadSync(files, { includeDirs: [root], longs: Number, enums: String, oneofs: true, defaults: true }),
).winnow;

export class WinnowError extends Error {
  constructor(code, message) {
    super(message);
    this.name = 'WinnowError';
    this.code = code;
  }
}

const errorOf = (error) => new WinnowError(grpc.status[error.code] ?? 'UNKNOWN', error.details || error.message);

const requestOf = (prompt, { stop = [], temperature, topP, seed, selection, budget, fields, ...known }) => {
  const names = ['maxTokens', 'n', 'requestId', 'model', 'resumable', 'signal'];
  const unknown = Object.keys(known).filter((name) => !names.includes(name));
  if (unknown.length > 0) throw new TypeError(`unknown parameters: ${unknown}; \`fields\` takes those of the protocol`);
  const { signal, ...request } = known;
  request.stop = [stop].flat();
  request.sampling = { temperature, topP, seed };
  request.selection = { specification: selection, budgetTokens: budget };
  if (typeof prompt === 'string') request.text = prompt;
  else if (prompt.every((item) => typeof item === 'number')) request.tokenIds = { ids: prompt };
  else request.messages = { messages: prompt };
  for (const [name, value] of Object.entries(fields ?? {})) {
    const is_part = value !== null && typeof value === 'object' && !Array.isArray(value);
    request[name] = is_part ? { ...request[name], ...value } : value;
  }
  return request;
};

export class Answer {
  #call;
  #events;
  requestId = '';
  promptTokens = 0;
  selection = '';
  forkedTokens = 0;
  resumeToken = '';
  outputs = [];
  usage = undefined;
  #request;

  constructor(call, { signal, request, outputs = [] }) {
    this.#call = call;
    this.#request = request;
    this.outputs = outputs;
    this.#events = call[Symbol.asyncIterator]();
    const cancel = () => call.cancel();
    if (signal?.aborted) cancel();
    signal?.addEventListener('abort', cancel);
    call.on('close', () => signal?.removeEventListener('abort', cancel));
    this.#output(0);
  }

  get text() {
    return this.outputs[0].text;
  }

  cancel() {
    this.#call.cancel();
  }

  // What Client.resume sends.
  resumption() {
    if (this.#request === undefined || !this.resumeToken) {
      throw new TypeError('this answer cannot be resumed: its request was not resumable');
    }
    const positions = this.outputs.map(({ text, tokens }) => ({
      nextIndex: tokens.length,
      textBytes: Buffer.byteLength(text),
    }));
    return { resumeToken: this.resumeToken, request: this.#request, positions };
  }

  // The first event, or the error of the request.
  async begin() {
    await this.#next();
    return this;
  }

  async *[Symbol.asyncIterator]() {
    let ended = false;
    try {
      for (;;) {
        const event = await this.#next();
        ended = event === undefined;
        if (ended) return;
        if (event.delta !== undefined) yield event.delta;
      }
    } catch (error) {
      ended = true;
      throw error;
    } finally {
      if (!ended) this.cancel(); // the loop was left
    }
  }

  async readAll() {
    for await (const delta of this);
    return this;
  }

  async #next() {
    let next;
    try {
      next = await this.#events.next();
    } catch (error) {
      throw errorOf(error);
    }
    if (next.done) return undefined;
    const event = next.value;
    if (event.accepted) {
      const { requestId, promptTokens, selection, forkedTokens, resumeToken } = event.accepted;
      Object.assign(this, { requestId, promptTokens, selection, forkedTokens, resumeToken });
    } else if (event.delta) {
      const output = this.#output(event.delta.outputIndex ?? 0);
      output.text += event.delta.text ?? '';
      output.tokens.push(...event.delta.tokens);
    } else if (event.outputFinished) {
      const { outputIndex, reason, stopMatch, selection } = event.outputFinished;
      const finishReason = reason.replace('FINISH_REASON_', '').toLowerCase();
      Object.assign(this.#output(outputIndex ?? 0), { finishReason, stopMatch, selection });
    } else if (event.usage) {
      this.usage = event.usage;
    }
    return event;
  }

  #output(index) {
    while (this.outputs.length <= index) this.outputs.push({ text: '', tokens: [] });
    return this.outputs[index];
  }
}

export class Client {
  #services;
  #metadata = new grpc.Metadata();
  #timeoutMs;

  constructor(address = '127.0.0.1:8001', { apiKey, timeoutMs, tlsCa, tlsCert, tlsKey, tlsName } = {}) {
    const read = (path) => (path === undefined ? undefined : readFileSync(path));
    const credentials =
      tlsCa === undefined
        ? grpc.credentials.createInsecure()
        : grpc.credentials.createSsl(read(tlsCa), read(tlsKey), read(tlsCert));
    const options = {
      'grpc.keepalive_time_ms': 10_000,
      'grpc.keepalive_timeout_ms': 5_000,
      'grpc.max_receive_message_length': 64 << 20,
      'grpc.max_send_message_length': 64 << 20,
      ...(tlsName === undefined ? {} : { 'grpc.ssl_target_name_override': tlsName }),
    };
    const generation = new v1.GenerationService(address, credentials, options);
    const shared = { ...options, channelOverride: generation.getChannel() };
    this.#services = {
      generation,
      tokenizer: new v1.TokenizerService(address, credentials, shared),
      model: new v1.ModelService(address, credentials, shared),
      admin: new v1.AdminService(address, credentials, shared),
    };
    if (apiKey) this.#metadata.set('authorization', `Bearer ${apiKey}`);
    this.#timeoutMs = timeoutMs;
  }

  async generate(prompt, parameters = {}) {
    const request = requestOf(prompt, parameters);
    return this.#stream('Generate', request, { signal: parameters.signal, request });
  }

  async chat(messages, parameters = {}) {
    return this.generate(messages, parameters);
  }

  async fork(sourceRequestId, { signal, ...parameters } = {}) {
    return this.#stream('Fork', { sourceRequestId, ...parameters }, { signal });
  }

  async resume(answer, { signal } = {}) {
    const resumption = answer.resumption();
    const { request } = resumption;
    return this.#stream('Resume', resumption, { signal, request, outputs: answer.outputs });
  }

  async abort(requestId) {
    await this.#ask('generation', 'Abort', { requestId });
  }

  async tokenize(text, { addSpecialTokens } = {}) {
    return (await this.#ask('tokenizer', 'Tokenize', { text, addSpecialTokens })).ids;
  }

  async detokenize(ids, { skipSpecialTokens } = {}) {
    return (await this.#ask('tokenizer', 'Detokenize', { ids, skipSpecialTokens })).text;
  }

  async models() {
    return (await this.#ask('model', 'ListModels', {})).models;
  }

  async serverInfo() {
    return this.#ask('admin', 'GetServerInfo', {});
  }

  close() {
    this.#services.generation.close();
  }

  #callOptions() {
    return this.#timeoutMs === undefined ? {} : { deadline: Date.now() + this.#timeoutMs };
  }

  #stream(method, request, about) {
    const call = this.#services.generation[method](request, this.#metadata, this.#callOptions());
    return new Answer(call, about).begin();
  }

  #ask(service, method, request) {
    return new Promise((resolve, reject) => {
      this.#services[service][method](request, this.#metadata, this.#callOptions(), (error, response) =>
        error ? reject(errorOf(error)) : resolve(response),
      );
    });
  }
}
