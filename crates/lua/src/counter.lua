-- Makes the function that returns the counter with a given name. `make` returns functions that read and write the
-- number of that counter. The host stores the number, so it can read the number even if the script never ends.

local make = ...
local type, error, setmetatable, tostring, format = type, error, setmetatable, tostring, string.format

local counters = {}

local function no_field(key)
    error(format("a counter has no %s", tostring(key)), 0)
end

return function(name)
    if type(name) ~= "string" then
        error(format("taut.counter: expected a string, got %s", type(name)), 0)
    end
    if counters[name] then
        return counters[name]
    end
    local get, set = make(name)
    local counter = { name = name }
    function counter.add(_, n)
        set(get() + (n or 1))
    end
    counters[name] = setmetatable(counter, {
        __metatable = false,
        __index = function(_, key)
            return key == "value" and get() or no_field(key)
        end,
        __newindex = function(_, key, value)
            if key ~= "value" then
                no_field(key)
            end
            set(value)
        end,
    })
    return counter
end
