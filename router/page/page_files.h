#pragma once
#include <span>
#include <string_view>

namespace winnow {

// One file of the page, as it lies in router/page/ when the program is built (embed.cmake).
struct PageFile {
  std::string_view path;  // that it is served at: "/", "/page/main.js"
  std::string_view content_type;
  std::string_view etag;  // of its content, with quotes
  std::string_view body;
};

// All of them; what they refer to is among them.
std::span<const PageFile> PageFiles();

}  // namespace winnow
