# cmake -DNAMES=... -DFILES=... -DOUTPUT=FILE -P embed.cmake: writes a source file with the text of each file as a constant of the
# name at the same place. A file that does not exist is an empty text.
set(content "#include \"report/page_parts.h\"\n\nnamespace zerorun {\n\n")
foreach(name file IN ZIP_LISTS NAMES FILES)
  set(text "")
  if(EXISTS ${file})
    file(READ ${file} text)
  endif()
  # A browser's developer tools would ask for these files.
  string(REGEX REPLACE "/[/*]# sourceMappingURL=[^\n]*" "" text "${text}")
  string(APPEND content "const std::string_view ${name} = R\"page(${text})page\";\n")
endforeach()
file(WRITE ${OUTPUT} "${content}\n}  // namespace zerorun\n")
