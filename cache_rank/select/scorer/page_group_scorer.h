#pragma once
#include <cstdint>

#include "cache_rank/index/index_layout.h"
#include "common/selection/page_groups.h"

namespace winnow {

// The bounds of groups of pages are those of all of a group's keys: the greatest maxima and the least minima of its
// pages. Here they are made from the pages' own whenever a query comes, so that on CPUs groups save the order of pages
// and not their reading.
//
// The greatest bound of each group in [groups.begin, groups.end) by pseudo-queries [num_queries, pages.head_dim]
// (page_scorer.h), at importance[group]; never NaN.
void ScorePageGroups(const KeyTable& pages, const float* page_queries, int num_queries, const PageGroups& groups,
                     float* importance);

}  // namespace winnow
