# find_package(gpuring CONFIG), with gpuring_DIR as `python -m gpuring.config --cmake` prints it.
# Makes the target gpuring::gpuring.
get_filename_component(_gpuring_root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT TARGET gpuring::gpuring)
  add_library(gpuring::gpuring SHARED IMPORTED)
  set_target_properties(gpuring::gpuring PROPERTIES
    IMPORTED_LOCATION "${_gpuring_root}/native/libgpuring.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_gpuring_root}/include")
endif()
unset(_gpuring_root)
