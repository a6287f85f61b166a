#include "cmd/doctor/ucx_transports.h"

#include <uct/api/uct.h>

#include <set>

namespace winnow {
namespace {

void AddTransports(uct_component_h component, const char* md_name, std::set<std::string>& names) {
  uct_md_config_t* config = nullptr;
  if (uct_md_config_read(component, nullptr, nullptr, &config) != UCS_OK) return;
  uct_md_h md = nullptr;
  const ucs_status_t opened = uct_md_open(component, md_name, config, &md);
  uct_config_release(config);
  if (opened != UCS_OK) return;
  uct_tl_resource_desc_t* resources = nullptr;
  unsigned count = 0;
  if (uct_md_query_tl_resources(md, &resources, &count) == UCS_OK) {
    for (unsigned i = 0; i < count; ++i) names.insert(resources[i].tl_name);
    uct_release_tl_resource_list(resources);
  }
  uct_md_close(md);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> UcxTransports() {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (const ucs_status_t status = uct_query_components(&components, &count); status != UCS_OK) {
    return absl::UnavailableError(ucs_status_string(status));
  }
  std::set<std::string> names;
  for (unsigned i = 0; i < count; ++i) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    if (uct_component_query(components[i], &attributes) != UCS_OK) continue;
    std::vector<uct_md_resource_desc_t> memory_domains(attributes.md_resource_count);
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    attributes.md_resources = memory_domains.data();
    if (memory_domains.empty() || uct_component_query(components[i], &attributes) != UCS_OK) continue;
    for (const uct_md_resource_desc_t& domain : memory_domains) AddTransports(components[i], domain.md_name, names);
  }
  uct_release_component_list(components);
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace winnow
