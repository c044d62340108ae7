# compiled_module(FOLDER NAME DESTINATION): compile FOLDER/NAME.py with Cython, using the types in
# NAME.pxd beside it, and install it in DESTINATION beside the Python module, which it overrides.
#
# It uses only the limited API of Python 3.11, so one file serves this and every later Python.
# Without Python's headers, the modules stay pure Python.
include_guard()

if(NOT PYVGPU_PYTHON_INCLUDE)
    execute_process(
        COMMAND "${Python_EXECUTABLE}" -c
            "import sysconfig; print(sysconfig.get_path('include')); print(sysconfig.get_config_var('MULTIARCH') or '')"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" found "${found}")
    list(GET found 0 PYVGPU_PYTHON_INCLUDE)
    list(LENGTH found count)
    set(multiarch "")
    if(count GREATER 1)
        list(GET found 1 multiarch)
    endif()
endif()

if(EXISTS "${PYVGPU_PYTHON_INCLUDE}/Python.h")
    set(HAS_COMPILED_MODULES ON)
    set(compiled_includes "${PYVGPU_PYTHON_INCLUDE}")
    if(PYVGPU_MACHINE AND multiarch)
        # Debian keeps pyconfig.h, the one header that differs, in an architecture's folder, where a
        # cross compiler does not search. The limited API uses only parts that are the same on both.
        get_filename_component(headers "${PYVGPU_PYTHON_INCLUDE}" NAME)
        set(config "${PYVGPU_PYTHON_INCLUDE}/../${multiarch}/${headers}/pyconfig.h")
        if(EXISTS "${config}")
            set(same "${CMAKE_CURRENT_BINARY_DIR}/pyconfig")
            foreach(machine x86_64 aarch64)
                file(CONFIGURE OUTPUT "${same}/${machine}-linux-gnu/${headers}/pyconfig.h"
                    CONTENT "#include \"${config}\"\n" @ONLY)
            endforeach()
            list(APPEND compiled_includes "${same}")
        endif()
    endif()
elseif(DEFINED ENV{CI})
    message(FATAL_ERROR "${PYVGPU_PYTHON_INCLUDE}/Python.h: missing (Debian: apt-get install python3-dev)")
else()
    set(HAS_COMPILED_MODULES OFF)
    message(WARNING "${PYVGPU_PYTHON_INCLUDE}/Python.h: missing, so hot loops stay in Python "
        "(Debian: apt-get install python3-dev)")
endif()

function(compiled_module folder name destination)
    if(NOT HAS_COMPILED_MODULES)
        return()
    endif()
    string(REPLACE "/" "." module "pyvgpu/${destination}/${name}")
    # Cython looks for types by the module's full name, so both files are copied to that path.
    set(tree "${CMAKE_CURRENT_BINARY_DIR}/cython")
    set(copied "${tree}/pyvgpu/${destination}/${name}")
    set(source "${CMAKE_SOURCE_DIR}/${folder}/${name}")
    add_custom_command(
        OUTPUT "${copied}.c"
        COMMAND "${CMAKE_COMMAND}" -E make_directory "${tree}/pyvgpu/${destination}"
        COMMAND "${CMAKE_COMMAND}" -E copy "${source}.py" "${source}.pxd" "${tree}/pyvgpu/${destination}"
        COMMAND "${Python_EXECUTABLE}" -m cython -3 -I "${tree}" --module-name "${module}"
                "${copied}.py" -o "${copied}.c"
        DEPENDS "${source}.py" "${source}.pxd"
        VERBATIM)
    add_library(${name} MODULE "${copied}.c")
    set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".abi3.so" COMPILE_OPTIONS "-w;-O3")
    target_include_directories(${name} SYSTEM PRIVATE ${compiled_includes})
    target_compile_definitions(${name} PRIVATE CYTHON_LIMITED_API=1 Py_LIMITED_API=0x030B0000)
    target_link_options(${name} PRIVATE "LINKER:-z,relro,-z,now" "LINKER:--strip-all")
    install(TARGETS ${name} LIBRARY DESTINATION "${destination}")
endfunction()
