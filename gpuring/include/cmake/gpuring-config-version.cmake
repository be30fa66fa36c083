# find_package(gpuring 0.1.0). Only the same version will do, because all programs in a ring have it.
set(PACKAGE_VERSION 0.1.0)
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
