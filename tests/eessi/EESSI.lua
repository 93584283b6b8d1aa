-- SPDX-License-Identifier: GPL-2.0-or-later
-- A miniature of EESSI's own module: the same variables, walks and Lmod calls, in a tree that is made for one test.
-- @ROOT@ stands where /cvmfs/software.eessi.io does.
local version = myModuleVersion()
local root = "@ROOT@"
local prefix = pathJoin(root, "versions", version)
local init = pathJoin(prefix, "init")
conflict("EESSI")
setenv("EESSI_VERSION_DEFAULT", version)
setenv("EESSI_VERSION", version)
setenv("EESSI_CVMFS_REPO", root)
setenv("EESSI_OS_TYPE", "linux")

local function detected(override, result, wrapper)
    local before = os.getenv(result) or os.getenv(override) or ""
    if not os.getenv(override) then
        source_sh("bash", pathJoin(init, wrapper))
    end
    return os.getenv(result) or before
end

local options = detected("EESSI_ARCHDETECT_OPTIONS_OVERRIDE", "EESSI_ARCHDETECT_OPTIONS", "cpu_wrapper.sh")
local cpu
for option in options:gmatch("[^:]+") do
    if isDir(pathJoin(prefix, "software", "linux", option, "software")) then
        cpu = option
        break
    end
end
if not cpu then
    LmodError("Software directory check for the detected architecture failed")
end
local accel = detected("EESSI_ACCELERATOR_TARGET_OVERRIDE", "EESSI_ACCEL_SUBDIR", "accel_wrapper.sh")
if os.getenv("EESSI_ACCELERATOR_TARGET_OVERRIDE") then
    setenv("EESSI_ACCEL_SUBDIR", os.getenv("EESSI_ACCELERATOR_TARGET_OVERRIDE"))
end

local family = os.getenv("EESSI_CPU_FAMILY_OVERRIDE") or cpu:match("[^/]+")
local eprefix = pathJoin(prefix, "compat", "linux", family)
local software = pathJoin(prefix, "software", "linux", cpu)
local modules = pathJoin(software, "modules", "all")
local site_software = software:gsub("versions", "host_injections")
local site_modules = pathJoin(site_software, "modules", "all")
setenv("EPREFIX", eprefix)
setenv("EESSI_EPREFIX", eprefix)
setenv("EESSI_CPU_FAMILY", family)
setenv("EESSI_SITE_SOFTWARE_PATH", site_software)
setenv("EESSI_SITE_MODULEPATH", site_modules)
setenv("EESSI_SOFTWARE_SUBDIR", cpu)
setenv("EESSI_PREFIX", prefix)
setenv("EESSI_INIT_PREFIX", init)
prepend_path("PATH", pathJoin(eprefix, "bin"))
prepend_path("PATH", pathJoin(eprefix, "usr", "bin"))
setenv("EESSI_SOFTWARE_LAYER_VERSION_SUFFIX", "")
setenv("EESSI_SOFTWARE_PATH", software)
setenv("EESSI_MODULEPATH", modules)
if mode() ~= "spider" then
    prepend_path("MODULEPATH", modules)
end
prepend_path("LMOD_RC", pathJoin(software, ".lmod", "lmodrc.lua"))
prepend_path("LMOD_RC", pathJoin(site_software, ".lmod", "lmodrc.lua"))
pushenv("LMOD_PACKAGE_PATH", pathJoin(software, ".lmod"))

if accel ~= "" then
    local below = pathJoin(prefix, "software", "linux", os.getenv("EESSI_ACCEL_SOFTWARE_SUBDIR_OVERRIDE") or cpu)
    local accel_modules = pathJoin(below, accel, "modules", "all")
    if not isDir(accel_modules) then
        accel = accel:sub(1, -2) .. "0"
        accel_modules = pathJoin(below, accel, "modules", "all")
    end
    if isDir(accel_modules) then
        setenv("EESSI_ACCELERATOR_TARGET", accel)
        setenv("EESSI_MODULEPATH_ACCEL", accel_modules)
        if mode() ~= "spider" then
            prepend_path("MODULEPATH", accel_modules)
        end
    end
end
prepend_path("MODULEPATH", site_modules)
if os.getenv("EESSI_MODULE_UPDATE_PS1") and os.getenv("PS1") then
    local mark = "{EESSI/" .. version .. "} "
    execute { cmd = 'PS1="' .. mark .. '$PS1"', modeA = { "load" } }
    execute { cmd = 'PS1="${PS1#"' .. mark .. '"}"', modeA = { "unload" } }
end
if os.getenv("EESSI_MODULE_STICKY") then
    add_property("lmod", "sticky")
end
if mode() == "load" and not os.getenv("EESSI_MODULE_QUIET_LOAD") then
    LmodMessage("Module for EESSI/" .. version .. " loaded successfully")
end
