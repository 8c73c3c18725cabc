# SPDX-License-Identifier: Apache-2.0
#
# What libopdeck.so exports is what its public headers declare, and a pack exports opdeck_pack_v1 alone.
#     cmake -DNM=nm -DLIBRARY=libopdeck.so -DPACK=x.opdeck.so "-DHEADERS=a.h;b.h" -P check_exports.cmake
function(exported_functions library result)
  execute_process(COMMAND ${NM} -D --defined-only ${library} OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL " [TDBRVWi] [A-Za-z0-9_]+" symbols "${lines}")
  list(TRANSFORM symbols REPLACE "^ . " "")
  list(FILTER symbols EXCLUDE REGEX "^__(a|ub|t|l)san|^_init$|^_fini$")
  list(SORT symbols)
  set(${result} "${symbols}" PARENT_SCOPE)
endfunction()

set(declared "")
foreach(header ${HEADERS})
  file(READ ${header} text)
  string(REGEX REPLACE "/\\*([^*]|\\*[^/])*\\*/" "" text "${text}")
  string(REGEX MATCHALL "opdeck_[a-z0-9_]+\\(" calls "${text}")
  list(TRANSFORM calls REPLACE "\\($" "")
  list(APPEND declared ${calls})
endforeach()
list(REMOVE_DUPLICATES declared)
list(SORT declared)

exported_functions(${LIBRARY} exported)
list(LENGTH declared num_declared)
if(num_declared LESS 10 OR NOT "${exported}" STREQUAL "${declared}")
  message(FATAL_ERROR "${LIBRARY} exports\n  ${exported}\nbut the headers declare\n  ${declared}")
endif()
exported_functions(${PACK} exported)
if(NOT "${exported}" STREQUAL "opdeck_pack_v1")
  message(FATAL_ERROR "${PACK} exports ${exported}, want opdeck_pack_v1 alone")
endif()
