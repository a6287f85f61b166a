#pragma once

namespace winnow {

struct Interval {
  double low = 0;
  double high = 1;
};

// 95 % interval of a share of `right` of `count` (Wilson 1927): sensible for few prompts and near 0 and 1, where the
// normal approximation is not. [0, 1] for count 0.
Interval WilsonInterval(int right, int count);

// Two-sided exact sign test of paired answers (McNemar's exact test): the chance of a split as uneven as `lost` against
// `gained`, or more, when losing and gaining are equally likely. 1 when there are none.
double SignTest(int lost, int gained);

}  // namespace winnow
