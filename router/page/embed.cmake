# Writes the page's files as C++: cmake -DOUT=FILE -DFOLDER=FOLDER "-DFILES=index.html;..." -P embed.cmake
# Literals of raw bytes, in pieces, because compilers limit how long one may be.
set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")

set(entries)
foreach(name IN LISTS FILES)
  file(READ ${FOLDER}/${name} bytes HEX)
  file(SHA256 ${FOLDER}/${name} digest)
  string(SUBSTRING ${digest} 0 20 digest)
  string(REGEX REPLACE "^.*\\." "" extension ${name})
  if(name STREQUAL "index.html")
    set(path "/")
  else()
    set(path "/page/${name}")
  endif()
  string(LENGTH "${bytes}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${bytes}")
  # 60 bytes a line.
  string(REPEAT "." 240 line)
  string(REGEX REPLACE "(${line})" "\\1\"\n     \"" bytes "${bytes}")
  string(APPEND entries "    {\"${path}\", \"${types_${extension}}\", \"\\\"${digest}\\\"\",\n     {\"${bytes}\", ${size}}},\n")
endforeach()
file(WRITE ${OUT} "#include \"router/page/page_files.h\"

namespace winnow {
namespace {

constexpr PageFile kFiles[] = {
${entries}};

}  // namespace

std::span<const PageFile> PageFiles() {
  return kFiles;
}

}  // namespace winnow
")
