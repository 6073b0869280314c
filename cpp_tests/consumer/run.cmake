# Installs the package, moves it, builds the consumer against it in both ways and runs it.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}: ${result}\n${said}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/first")
file(RENAME "${WORK}/first" "${WORK}/moved")
set(library "${WORK}/moved/${LIBDIR}")
foreach(link libkvbridge.so ${SONAME})
  if(NOT IS_SYMLINK "${library}/${link}")
    message(FATAL_ERROR "${link} is not installed as a link")
  endif()
endforeach()

run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build"
  -D "CMAKE_PREFIX_PATH=${WORK}/moved" -D "CMAKE_CXX_COMPILER=${CXX}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/consumer")

find_program(pkg_config pkg-config)
if(pkg_config)
  set(ENV{PKG_CONFIG_PATH} "${library}/pkgconfig")
  execute_process(COMMAND "${pkg_config}" --cflags --libs kvbridge
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run("${CXX}" -std=c++17 "${CMAKE_CURRENT_LIST_DIR}/main.cc" -o "${WORK}/by_pkg_config" ${flags}
    "-Wl,-rpath,${library}")
  run("${WORK}/by_pkg_config")
endif()

# What was linked must ask for the SONAME, not for a path.
execute_process(COMMAND readelf -d "${WORK}/build/consumer" OUTPUT_VARIABLE dynamic)
if(NOT dynamic MATCHES "NEEDED[^\n]*\\[${SONAME}\\]")
  message(FATAL_ERROR "the consumer does not need ${SONAME}:\n${dynamic}")
endif()
