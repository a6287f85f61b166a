#include "cmd/role/options/inference_options.h"

#include "cmd/role/options/model_options.h"
#include "cmd/role/own_address.h"

namespace winnow {

void SchedulingFlags::Declare(Fields& fields) {
  fields.Integer(
      "max-batch-tokens", &max_batch_tokens,
      "The most decode rows and prompt tokens that an iteration computes together. Rows beyond it take turns, and "
      "a quarter of it is kept for prompts that wait. 0 = no limit beside --max-running and prefill chunks.",
      0u, 1u << 20);
  fields.Integer("max-inject-tokens", &max_inject_tokens,
                 "The most prompt tokens that an iteration computes beside running answers: fewer let them stream more "
                 "evenly, more let new ones start sooner. 0 = as many as a prefill chunk.",
                 0u, 65536u);
  fields.Duration(
      "tpot-target", &tpot_target,
      "Time between the tokens of an answer that prompts beside it must respect, for example 50ms: injected "
      "tokens are found from it, up to --max-inject-tokens, by measuring steps. Prompts get a fifth of the time "
      "even where nothing fits. 0s = none; on one GPU that has all rows of its sequences steps then go on beside "
      "prompts.");
  fields.Duration("age-bound", &age_bound,
                  "A sequence that has waited for so long goes before all others, and may take the place of one that "
                  "has run for so long, which resumes later with the same output. 0s = never.");
  fields.Bool(
      "working-set-control", &working_set_control,
      "Decode as many sequences at once as have room for what their selections read in the fast memory of their cache "
      "ranks; others wait for their turn, which comes after --age-bound at the latest. off = all at once.");
}

void PrefillFlags::Declare(Fields& fields) {
  fields.Enum("prefill", &mode,
              {{"auto", PrefillMode::kAuto}, {"chunked", PrefillMode::kChunked}, {"layered", PrefillMode::kLayered}},
              "How prompts are computed: chunked keeps the KV of the whole prompt until it is done; layered goes layer "
              "by layer over all of it and keeps one layer's KV and the residual of each token. auto = layered where a "
              "prompt's KV would not fit --prefill-memory, and on a GPU with --tpot-target.");
  fields.Enum(
      "prefix-attention", &prefix_attention,
      {{"auto", PrefixAttention::kAuto},
       {"stream-back", PrefixAttention::kStreamBack},
       {"remote", PrefixAttention::kRemote}},
      "How the rest of a prompt attends to a cached prefix: stream-back has all rows of the prefix sent; remote "
      "sends the queries to the cache ranks, layer by layer, and gets states of attention back. auto = whichever is "
      "expected to be faster: remote where little follows a long prefix. Answers are the same. Always stream-back "
      "on a GPU, where decoding begins with all rows, and where a cache rank has other kernels (isa).");
  fields.Bool("keep-prefixes", &keep_prefixes,
              "On GPUs that hold all rows of their sequences: rows of prompts stay there after their sequences for as "
              "long as nobody needs the room, so that prompts that begin with them, samples and sequences that were "
              "preempted find them without a transfer. Cache ranks say what a prompt may begin with, as without it "
              "(--prefix-cache). Answers are the same.");
  fields.Integer(
      "prefill-chunk", &chunk,
      "Prompt tokens computed at a time. Larger chunks are faster and, where steps do not go on beside them, hold up "
      "running sequences for longer. 0 = 512 on a CPU, 2048 on a GPU.",
      0u, 65536u);
  fields.Bytes(
      "prefill-memory", &memory_bytes,
      "Memory for prompts in prefill: their KV, or, layer by layer, one layer's and the residuals; of each GPU "
      "where several hold a model. 0 = two of the longest.");
}

InferenceProcessOptions::InferenceProcessOptions() {
  process.rank = "inference-0";
  process.grpc.host = process.metrics.host = kAutoHost;
}

void InferenceProcessOptions::Declare(Fields& fields) {
  process.Declare(fields);
  join.Declare(fields);
  DeclareDataPlane(fields, &data_plane);
  fields.Folder("model", &model,
                "Folder of the model: config.json, safetensors and a tokenizer (tokenizer.json, tokenizer.model, "
                "*.tiktoken or vocab.txt).");
  fields.Enum(
      "role", &role,
      {{"prefill", InferenceRole::kPrefill}, {"decode", InferenceRole::kDecode}, {"both", InferenceRole::kBoth}},
      "What the router gives this rank, while there are others for the rest: prefill computes prompts and hands "
      "them over after the first token, decode goes on from there with what is on the cache rank.");
  DeclareDecodePrefillTokens(fields, &decode_prefill_tokens);
  DeclareTransport(fields, &transport);
  DeclareSelectInPlace(fields, &select_in_place);
  DeclareDevice(fields, &device, &tensor_parallel);
  DeclareCompute(fields, &compute);
  DeclareKvDtype(fields, &kv_dtype);
  fields.Text("isa", &isa, "CPU kernels: auto, or the name of a set (portable, avx512bf16).");
  fields.Integer("threads", &threads,
                 "Threads of the compute team; 0 = one per core. More than cores makes every step slower.", 0, 1024);
  DeclareMaxContext(fields, &max_context);
  DeclareMaxRunning(fields, &max_running);
  prefill.Declare(fields);
  scheduling.Declare(fields);
  DeclareResumeGrace(fields, &resume_grace);
  DeclareSlotMemory(fields, &slot_memory_bytes, &slot_host_memory_bytes);
  selection.Declare(fields);
  fields.Nested("cache", &cache);
}

void DeclareTransport(Fields& fields, TransportKind* transport) {
  fields.Enum(
      "transport", transport,
      {{"auto", TransportKind::kAuto},
       {"inproc", TransportKind::kInproc},
       {"ucx", TransportKind::kUcx},
       {"p2p", TransportKind::kP2p},
       {"nccl", TransportKind::kNccl}},
      "How KV rows travel to cache ranks in processes of their own. ucx: by UCX. p2p: within a host, prompts and "
      "frames in memory that both processes map, and decode steps from GPU to GPU where both ranks have one (--device, "
      "--cache-device) that reach each other. nccl: prompts and frames from GPU to GPU by NCCL, also between hosts. "
      "What cannot be goes by ucx, and the log says why. inproc hosts a cache rank inside the inference process, so "
      "that a crash loses both. auto = p2p.");
}

void DeclareSelectInPlace(Fields& fields, SelectInPlace* select_in_place) {
  fields.Enum(
      "select-in-place", select_in_place,
      {{"auto", SelectInPlace::kAuto}, {"on", SelectInPlace::kOn}, {"off", SelectInPlace::kOff}},
      "Where an inference rank on GPUs selects the rows that its steps attend to: on, where it computes, so that it "
      "holds all rows of its sequences and an index of their keys, each GPU of its kv heads; cache ranks keep a copy, "
      "from which sequences go on after a failure. off, on the cache ranks. What cannot be selected in place (such as "
      "corrections) goes by the cache ranks all the same. auto = on where no cache ranks' GPUs can be reached "
      "(--transport).");
}

void DeclareDecodePrefillTokens(Fields& fields, uint32_t* decode_prefill_tokens) {
  fields.Integer("decode-prefill-tokens", decode_prefill_tokens,
                 "Longest prompt that a rank for decoding computes itself. Longer ones hold up its running sequences; "
                 "shorter ones are not worth a hand-over. 0 = none.",
                 0u, 1u << 24);
}

void DeclareDevice(Fields& fields, DeviceChoice* device, int* tensor_parallel) {
  fields.Custom(
      "device", "auto|cpu|cuda[:N[,M...]]",
      "Where inference ranks compute. auto: on the GPU if one answers and can, otherwise on the CPU, and the log says "
      "why not; cuda: on the GPU or not at all. :N names GPU N instead of 0, :N,M several; `winnow up` gives each "
      "inference rank the next, or the next --tensor-parallel.",
      [device](std::string_view text) -> absl::Status {
        WINNOW_ASSIGN_OR_RETURN(*device, ParseDeviceChoice(text));
        return absl::OkStatus();
      },
      [device] { return ToString(*device); });
  fields.Integer(
      "tensor-parallel", tensor_parallel,
      "GPUs that hold a model together and compute each token together, 1, 2 or 4: each has its part of the heads and "
      "of the MLP, of the weights and of resident KV. For models that do not fit one GPU, and for shorter times "
      "between tokens. The model's kv heads must be divisible by it. 0 = as many as --device names, of one process.",
      0, 4);
}

void DeclareResumeGrace(Fields& fields, std::chrono::microseconds* resume_grace) {
  fields.Duration("resume-grace", resume_grace,
                  "How long an inference rank goes on with a resumable request that nobody listens to, and keeps the "
                  "tokens of one that has ended, so that its client can resume it.");
}

void DeclareMaxRunning(Fields& fields, uint32_t* max_running) {
  fields.Integer("max-running", max_running,
                 "Sequences in a decode batch of one inference rank; each needs "
                 "resident rows. More run slower each and faster together.",
                 1u, 4096u);
}

void DeclareSlotMemory(Fields& fields, int64_t* memory_bytes, int64_t* host_memory_bytes) {
  fields.Bytes(
      "slot-memory", memory_bytes,
      "Memory for resident KV rows, of each GPU where several hold a model; 0 = what the running sequences can need.");
  fields.Bytes("slot-host-memory", host_memory_bytes,
               "Host memory, pinned, for resident rows that one GPU has no room for, where rows are selected in place "
               "(--select-in-place): contexts and batches grow by as much, as far as the index of their keys, which "
               "stays in the "
               "GPU's memory, finds room there. Beside what the cache ranks keep. 0 = none.");
}

}  // namespace winnow
