/** A client of a Winnow server's gRPC port. */

export interface Message {
  role: string;
  content: string;
}

/** Text, taken as it is; token ids; or the messages of a chat, which the model's template is applied to. */
export type Prompt = string | readonly number[] | readonly Message[];

/** What a request may say beside its prompt. Absent: the server's default, which docs/api.md names. */
export interface Parameters {
  maxTokens?: number;
  temperature?: number;
  topP?: number;
  seed?: number;
  /** Samples: the answer has as many outputs. */
  n?: number;
  stop?: string | string[];
  /** Preset or specification of the selection: "winnow", "predictor=temporal,window=16". */
  selection?: string;
  /** Selected rows per head. */
  budget?: number;
  requestId?: string;
  /** The answer can go on after its stream or its server was lost: `resume`. */
  resumable?: boolean;
  model?: string;
  /** Ends the request. */
  signal?: AbortSignal;
  /** Everything else: fields of GenerateRequest (generation.proto), {topLogprobs: 5}. */
  fields?: Record<string, unknown>;
}

export interface Token {
  id: number;
  logprob?: number;
  topLogprobs: { id: number; logprob: number }[];
}

/** New tokens of one output, and the text that is final with them: they may differ by a few tokens. */
export interface Delta {
  text: string;
  tokens: Token[];
  outputIndex: number;
  firstIndex: number;
}

/** What the selection of KV rows did; every field is described in rank.proto. */
export interface SelectionStats {
  capturedMassMean?: number;
  capturedMassP5?: number;
  contextTokens: number;
  residentRows: number;
  streamedBytes: number;
  decodeSteps: number;
  reattachCount: number;
  [field: string]: unknown;
}

/** One sample, complete once it has a finishReason. */
export interface Output {
  text: string;
  tokens: Token[];
  finishReason?: 'stop' | 'length';
  /** The stop string that ended it. */
  stopMatch?: string;
  selection?: SelectionStats | null;
}

export interface Usage {
  promptTokens: number;
  completionTokens: number;
  cachedPromptTokens: number;
}

/** An answer under way: iterate over its deltas, once, then look at outputs and usage. Leaving the loop ends the request. */
export class Answer implements AsyncIterable<Delta> {
  private constructor();
  readonly requestId: string;
  readonly promptTokens: number;
  /** The selection in force, as text. */
  readonly selection: string;
  /** Of a fork: the tokens of its source with which it begins, and which are not repeated. */
  readonly forkedTokens: number;
  /** Of a resumable request. */
  readonly resumeToken: string;
  /** They grow while the answer is read. */
  readonly outputs: readonly Output[];
  /** At the end. */
  readonly usage?: Usage;
  /** Of the first output, as far as it has been read. */
  get text(): string;
  [Symbol.asyncIterator](): AsyncGenerator<Delta, void, void>;
  /** Reads the rest. */
  readAll(): Promise<this>;
  /** Ends the request at the server. */
  cancel(): void;
}

export interface ClientOptions {
  /** Of a server with keys. */
  apiKey?: string;
  /** Of each call, until the end of its answer; absent: the server's. */
  timeoutMs?: number;
  /** Files (PEM) for a server with TLS: of those who sign its certificate, and the client's own where one is needed. */
  tlsCa?: string;
  tlsCert?: string;
  tlsKey?: string;
  /** The name in the server's certificate, where it is not that of the address. */
  tlsName?: string;
}

export interface Model {
  id: string;
  maxContextTokens: number;
  vocabSize: number;
  selectionPreset: string;
  maxBudgetTokens: number;
  selection: string;
}

/** Errors are WinnowError. The first call connects. */
export class Client {
  /** `address` is "host:port", by default 127.0.0.1:8001. */
  constructor(address?: string, options?: ClientOptions);
  generate(prompt: Prompt, parameters?: Parameters): Promise<Answer>;
  chat(messages: readonly Message[], parameters?: Parameters): Promise<Answer>;
  /**
   * Goes on with an answer, of a resumable request, whose stream or server was lost. What was read stays in `outputs`,
   * and grows. May be asked of any server of the cluster, while one does not answer again and again.
   */
  resume(answer: Answer, options?: { signal?: AbortSignal }): Promise<Answer>;
  /** Goes on from the current token of an answer under way, with random numbers of its own. */
  fork(
    sourceRequestId: string,
    parameters?: {
      outputIndex?: number;
      requestId?: string;
      sampleIndex?: number;
      maxTokens?: number;
      signal?: AbortSignal;
    },
  ): Promise<Answer>;
  /** Cancels a request by its id. */
  abort(requestId: string): Promise<void>;
  tokenize(text: string, options?: { addSpecialTokens?: boolean }): Promise<number[]>;
  detokenize(ids: readonly number[], options?: { skipSpecialTokens?: boolean }): Promise<string>;
  models(): Promise<Model[]>;
  /** With TLS for operators' certificates alone. */
  serverInfo(): Promise<{ version: string; optionsYaml: string; [field: string]: unknown }>;
  close(): void;
}

/** What the server said, or why it said nothing. */
export class WinnowError extends Error {
  /** Name of the gRPC status: "INVALID_ARGUMENT", "UNAVAILABLE", ... */
  readonly code: string;
}
