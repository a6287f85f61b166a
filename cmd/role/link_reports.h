#pragma once
#include <memory>

#include "common/metrics/family_writer.h"
#include "transport/transport.h"

namespace winnow {

// What a rank's links say of their protection, and of frames that they refuse: for the log and for metrics.
class LinkReports {
 public:
  LinkReports();

  // The transport made with these options tells them here.
  void Attach(TransportOptions& options) const;
  // Any thread.
  void Write(FamilyWriter& writer) const;

 private:
  struct Counts;
  std::shared_ptr<Counts> counts_;  // the transport may outlive this object
};

}  // namespace winnow
