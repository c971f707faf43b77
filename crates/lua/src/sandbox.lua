-- Removes a script's access to files, programs, native code and memory of the process.

local load, error = load, error
local os_time, os_clock, os_date, traceback = os.time, os.clock, os.date, debug and debug.traceback

-- LuaJIT does not check bytecode, so bytecode could do anything: only source can be loaded.
function _G.load(chunk, name, _, environment)
    if environment ~= nil then
        return load(chunk, name, "t", environment)
    end
    return load(chunk, name, "t")
end

function _G.loadstring(chunk, name)
    if type(chunk) ~= "string" then
        error("loadstring: expected a string", 2)
    end
    return load(chunk, name, "t")
end

_G.os = { time = os_time, clock = os_clock, date = os_date }
_G.debug = { traceback = traceback }
_G.jit = { version = jit.version, os = jit.os, arch = jit.arch }
string.dump = nil
for _, name in ipairs { "io", "package", "require", "module", "dofile", "loadfile", "ffi", "getfenv", "setfenv", "newproxy" } do
    _G[name] = nil
end
