#include "tools/bench/gpu/checks/chunk_sums_check.h"

#include "absl/strings/str_cat.h"

namespace winnow {
namespace {

struct ChunkCase {
  int num_ranks, hidden_size;
  device::ChunkOwners owners;
};

class ChunkSumCheck {
 public:
  ChunkSumCheck(GpuContext& gpu, const ChunkCase& of)
      : gpu_(gpu),
        of_(of),
        name_(absl::StrCat("chunk sums of ", of.num_ranks, " ranks, ", of.owners.num_rows, " x ", of.hidden_size,
                           " from ", of.owners.first_position, ", groups of ", of.owners.group_rows)),
        elements_(static_cast<size_t>(of.owners.num_rows) * of.hidden_size),
        before_(Normal(elements_)),
        expected_(elements_),
        weight_(gpu.Upload(Normal(of.hidden_size))),
        value_(gpu.Upload(std::vector<uint32_t>{7})) {
    for (int r = 0; r < of.num_ranks; ++r) {
      const std::vector<float> partial = Normal(elements_);
      for (size_t i = 0; i < elements_; ++i) expected_[i] += partial[i];
      partials_.push_back(gpu.Upload(partial));
      x_.push_back(gpu.Upload(before_));
      out_.push_back(gpu.New<uint16_t>(elements_));
      mailboxes_.push_back(gpu.New<float>(of.num_ranks * elements_));
      flags_.push_back(gpu.NewZeroed<uint32_t>(size_t{2} * of.num_ranks * device::kChunkSumBlocks));
      streams_.push_back(gpu.device.NewStream());
    }
    for (size_t i = 0; i < elements_; ++i) expected_[i] += before_[i];
  }

  // In one launch, or the sum and then the norm.
  void Run(bool at_once) {
    if (at_once) {
      Launch(true, true, 1);
    } else {
      Launch(true, false, 1);
      Launch(false, true, 2);
    }
    const std::vector<uint16_t> normed = Norm();
    for (int r = 0; r < of_.num_ranks; ++r) {
      std::vector<float> sums = before_;
      const device::OwnedRows rows(of_.owners, r, of_.num_ranks);
      for (int i = 0; i < rows.count(); ++i) {
        const size_t first = static_cast<size_t>(rows.row(i)) * of_.hidden_size;
        std::copy_n(expected_.begin() + first, of_.hidden_size, sums.begin() + first);
      }
      gpu_.report.Check(name_, WordsThatDiffer(gpu_.Download(x_[r], elements_), sums), 0);
      gpu_.report.Check(name_ + ", norm", WordsThatDiffer(gpu_.Download(out_[r], elements_), normed), 0);
    }
  }

 private:
  std::vector<float> Normal(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(gpu_.random);
    return values;
  }
  template <typename T>
  static double WordsThatDiffer(const std::vector<T>& a, const std::vector<T>& b) {
    double differ = a.size() == b.size() ? 0 : 1;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) differ += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
    return differ;
  }

  void Launch(bool adds, bool norms, uint32_t value_plus) {
    for (int r = 0; r < of_.num_ranks; ++r) {
      device::ChunkSumParams params = {.rank = r,
                                       .num_ranks = of_.num_ranks,
                                       .owners = of_.owners,
                                       .hidden_size = of_.hidden_size,
                                       .partial = adds ? partials_[r] : nullptr,
                                       .x = x_[r],
                                       .mailbox_stride = static_cast<int64_t>(elements_),
                                       .weight = norms ? weight_ : nullptr,
                                       .epsilon = 1e-6f,
                                       .value = value_,
                                       .value_plus = value_plus,
                                       .timeout_us = 2'000'000};
      for (int to = 0; to < of_.num_ranks; ++to) {
        params.mailboxes[to] = mailboxes_[to];
        params.out[to] = out_[to];
        params.flags[to] = flags_[to];
      }
      gpu_.table.chunk_sums->add_chunk(streams_[r], params);
    }
    for (const device::Stream stream : streams_) {
      const absl::Status status = gpu_.device.Synchronize(stream);
      if (!status.ok()) gpu_.report.Fail(name_, std::string(status.message()));
    }
  }

  std::vector<uint16_t> Norm() {
    uint16_t* out = gpu_.New<uint16_t>(elements_);
    gpu_.table.elementwise->rms_norm(gpu_.stream, {.x = gpu_.Upload(expected_),
                                                   .num_rows = of_.owners.num_rows,
                                                   .hidden_size = of_.hidden_size,
                                                   .weight = weight_,
                                                   .epsilon = 1e-6f,
                                                   .out = out});
    return gpu_.Download(out, elements_);
  }

  GpuContext& gpu_;
  const ChunkCase of_;
  const std::string name_;
  const size_t elements_;
  const std::vector<float> before_;
  std::vector<float> expected_;
  float* const weight_;
  uint32_t* const value_;
  std::vector<float*> partials_, x_, mailboxes_;
  std::vector<uint16_t*> out_;
  std::vector<uint32_t*> flags_;
  std::vector<device::Stream> streams_;
};

// Every row has one owner, by its position.
void CheckOwners(GpuContext& gpu) {
  double wrong = 0;
  for (int num_ranks = 2; num_ranks <= device::kMaxTensorParallel; ++num_ranks) {
    for (const device::ChunkOwners owners :
         {device::ChunkOwners{0, 2048, 64}, {191, 130, 64}, {63, 2, 64}, {4090, 1, 32}}) {
      std::vector<int> owned(owners.num_rows);
      for (int r = 0; r < num_ranks; ++r) {
        const device::OwnedRows rows(owners, r, num_ranks);
        for (int i = 0; i < rows.count(); ++i) {
          const int row = rows.row(i);
          wrong += row < 0 || row >= owners.num_rows ||
                   (owners.first_position + row) / owners.group_rows % num_ranks != static_cast<uint32_t>(r);
          if (row >= 0 && row < owners.num_rows) ++owned[row];
        }
      }
      for (const int times : owned) wrong += times != 1;
    }
  }
  gpu.report.Check("chunk sums, owners of rows", wrong, 0);
}

}  // namespace

void CheckChunkSums(GpuContext& gpu) {
  CheckOwners(gpu);
  if (gpu.few_small) return;  // a sanitizer may let one kernel wait for another to end
  const std::vector<ChunkCase> cases = {{2, 5120, {0, 128, 64}},   {2, 5120, {100, 77, 64}}, {4, 5120, {7, 120, 16}},
                                        {3, 4096, {3, 50, 8}},     {2, 8192, {64, 1, 64}},   {2, 5120, {9, 1, 0}},
                                        {4, 256, {1000, 200, 64}}, {2, 1024, {0, 33, 0}}};
  for (const ChunkCase& of : cases) {
    for (const bool at_once : {true, false}) ChunkSumCheck(gpu, of).Run(at_once);
    gpu.FreeAll();
  }
}

}  // namespace winnow
