# Read by CTest when it starts: makes one test of each suite of a test program.
#
# Before: `program` (its path), `label`, `serial` (a list of suites).
cmake_policy(SET CMP0057 NEW)  # if(… IN_LIST …); CTest sets no version of the policies
if(NOT EXISTS "${program}")
  add_test("${label}.is_not_built" "${program}")  # fails, and says which program is missing
  set_tests_properties("${label}.is_not_built" PROPERTIES LABELS ${label})
  return()
endif()
execute_process(COMMAND "${program}" --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${program} --gtest_list_tests failed: ${failed}")
endif()

# The simulations begin first, because they take longest.
string(COMPARE EQUAL "${label}" sim_tests cost)

# A suite is a line "Suite." or "Instance/Suite.  # TypeParam = …", its tests are indented.
string(REGEX MATCHALL "(^|\n)[A-Za-z0-9_/]+\\." suites "${listed}")
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "[\n.]" "" suite "${suite}")
  add_test("${label}.${suite}" "${program}" "--gtest_filter=${suite}.*" --gtest_brief=1)
  if(suite IN_LIST serial)
    set(alone TRUE)
  else()
    set(alone FALSE)
  endif()
  set_tests_properties("${label}.${suite}" PROPERTIES
    LABELS ${label} TIMEOUT 300 RUN_SERIAL ${alone} COST ${cost})
endforeach()
