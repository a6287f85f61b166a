// One streamed answer: its pieces, what each step attended to, when they came, what it cost.
import { ApiError, chatChunks } from '/page/api.js';
import { Timing } from '/page/timing.js';

export class Generation {
  constructor() {
    this.timing = new Timing();
    this.pieces = []; // {text, reasoning, first, ids}: the text that became final with the tokens from index `first` on
    this.traces = new Map(); // by token index
    this.masses = new Map(); // captured mass by token index
    this.tokenCount = 0;
    this.promptProgress = null; // how far the prompt is, once the server has begun with it
    this.usage = null;
    this.finishReason = null;
    this.traceRefused = null; // why the server does not say what steps attend to
    this.error = null;
    this.stopped = false;
  }

  get text() {
    return this.pieces
      .filter((piece) => !piece.reasoning)
      .map((piece) => piece.text)
      .join('');
  }

  get ids() {
    return this.pieces.flatMap((piece) => piece.ids);
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.winnow?.prompt_progress) this.promptProgress = chunk.winnow.prompt_progress;
    for (const choice of chunk.choices) {
      const ids = choice.token_ids ?? [];
      for (const trace of choice.winnow?.trace ?? []) {
        this.traces.set(trace.token_index, trace);
        if (trace.captured_mass !== undefined) this.masses.set(trace.mass_token_index, trace.captured_mass);
      }
      if (ids.length > 0) this.timing.tokens(ids.length);
      const add = (text, reasoning, own) => this.pieces.push({ text, reasoning, first: this.tokenCount, ids: own });
      const { content, reasoning_content: thought } = choice.delta ?? {};
      if (thought) add(thought, true, content ? [] : ids);
      if (content || (ids.length > 0 && !thought)) add(content ?? '', false, ids);
      this.tokenCount += ids.length;
      if (choice.finish_reason) this.finishReason = choice.finish_reason;
    }
  }
}

// Runs a request until its end, its failure (Generation.error) or the signal. `onChange(generation)` after each chunk.
export async function generate(body, signal, onChange) {
  const generation = new Generation();
  const wanted = {
    ...body,
    return_token_ids: true,
    stream_options: { include_usage: true },
    winnow: { ...body.winnow, prompt_progress: true },
  };
  const run = async (request) => {
    for await (const chunk of chatChunks(request, signal)) {
      generation.take(chunk);
      onChange(generation);
    }
  };
  try {
    try {
      await run(wanted);
    } catch (error) {
      if (!isTraceRefusal(error, wanted) || generation.tokenCount > 0) throw error;
      generation.traceRefused = error.message;
      generation.timing = new Timing();
      const { trace, ...others } = wanted.winnow;
      await run({ ...wanted, winnow: others });
    }
  } catch (error) {
    if (error.name === 'AbortError' || signal.aborted) generation.stopped = true;
    else generation.error = error instanceof ApiError ? error.message : `Something went wrong: ${error.message}`;
  }
  generation.timing.end();
  onChange(generation);
  return generation;
}

// Some placements cannot tell, and say so; the answer is worth having without.
function isTraceRefusal(error, request) {
  return error instanceof ApiError && request.winnow?.trace !== undefined && error.message.includes('winnow.trace');
}
