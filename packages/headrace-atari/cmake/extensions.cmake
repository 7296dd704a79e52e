# How the native parts of both packages are compiled. Whoever includes this sets PACKAGE before: the package's import name.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# A source build is for the machine it is built on. A wheel, which travels, is for every processor of its architecture; on x86-64
# it has every part once for each of these levels, as `-march` names them, of which headrace_atari/processor_levels.py chooses one
# at run time.
set(HEADRACE_MARCH "native" CACHE STRING "value of -march for the native parts")
set(HEADRACE_LEVELS "" CACHE STRING "instead of HEADRACE_MARCH, any of x86-64-v2 x86-64-v3 x86-64-v4")
option(HEADRACE_TESTS "build what only tests use: the environment variable HEADRACE_TESTS at pip install" OFF)
set(ZIG FALSE)  # the compiler of `make wheel`
if(CMAKE_CXX_COMPILER_ARG1 MATCHES ziglang)
  set(ZIG TRUE)
endif()
set(HEADRACE_SANITIZE "" CACHE STRING "value of -fsanitize, e.g. address,undefined or thread")

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
find_package(Threads REQUIRED)
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT)
find_package(nanobind CONFIG REQUIRED)
if(SKBUILD_SABI_COMPONENT)
  # nanobind uses stderr, and Python.h includes its header only without the stable ABI.
  add_compile_options(-include cstdio)
endif()

# One extension module per native part: <package>._native.<part>, from its bindings. `targets` gets the names of its targets.
function(headrace_extension part bindings targets)
  set(names)
  if(NOT HEADRACE_LEVELS)
    set(march "")
    if(HEADRACE_MARCH)
      set(march -march=${HEADRACE_MARCH})
    endif()
    headrace_module(${part} ${part} ${bindings} ${PACKAGE}/_native "${march}")
    list(APPEND names ${part})
  endif()
  foreach(level ${HEADRACE_LEVELS})
    string(REPLACE "-" "_" folder ${level})
    set(march -march=${level})
    if(ZIG)  # it names processors with underscores
      set(march -march=${folder})
    endif()
    if(level STREQUAL "x86-64-v4")
      list(APPEND march -mavx512vbmi)
    endif()
    headrace_module(${part}_${folder} ${part} ${bindings} ${PACKAGE}/_native/${folder} "${march}")
    list(APPEND names ${part}_${folder})
  endforeach()
  set(stubs ${CMAKE_CURRENT_BINARY_DIR})
  if(CMAKE_CROSSCOMPILING)  # of modules that this machine cannot import: the stubs of its own wheel, which are the same
    string(REPLACE _${CMAKE_SYSTEM_PROCESSOR} _${CMAKE_HOST_SYSTEM_PROCESSOR} stubs ${stubs})
  else()
    list(GET names 0 first)  # the lowest level, which this machine can import
    nanobind_add_stub(${part}_stub MODULE ${part} OUTPUT ${part}.pyi
                      PYTHON_PATH $<TARGET_FILE_DIR:${first}> DEPENDS ${first})
  endif()
  install(FILES ${stubs}/${part}.pyi DESTINATION ${PACKAGE}/_native)
  set(${targets} ${names} PARENT_SCOPE)
endfunction()

function(headrace_module target part bindings destination march)
  set(stable)
  if(SKBUILD_SABI_COMPONENT)
    set(stable STABLE_ABI)  # one wheel for all Pythons from 3.12
  endif()
  nanobind_add_module(${target} NB_STATIC ${stable} ${bindings})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${part})
  if(HEADRACE_LEVELS)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${target})
    if(NOT ZIG)  # zig's own C++ library is static
      # The C++ library of the machine may be older.
      target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL)
    endif()
  endif()
  target_include_directories(${target} PRIVATE native)
  # No fused multiply-add: results that are promised bit for bit must not depend on the compiler.
  target_compile_options(${target} PRIVATE -O3 -ffp-contract=off -Wall -Wextra ${march})
  if(HEADRACE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${HEADRACE_SANITIZE} -g)
    target_link_options(${target} PRIVATE -fsanitize=${HEADRACE_SANITIZE})
  endif()
  target_link_libraries(${target} PRIVATE Threads::Threads)
  install(TARGETS ${target} LIBRARY DESTINATION ${destination})
endfunction()
