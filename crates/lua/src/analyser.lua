-- The interface of an analyser's script: the table `taut`, packets with their metadata, and the numbers of flows. It
-- uses only functions that are safe with any arguments, so nothing in this file has to be hidden from scripts.

local packets, counter, fire, host = ...
local type, error, tostring, format, setmetatable = type, error, tostring, string.format, setmetatable
local batch, fill, getters = packets.batch, packets.fill, packets.getters

-- Count of numbers per packet, which analyser.rs writes.
local EACH = 6
local get, set
-- Slot of the packet that the script is processing; none outside of the script's function.
local current

function getters.seconds(self)
    return get(self[1] * EACH)
end

function getters.wire_len(self)
    return get(self[1] * EACH + 1)
end

function getters.port(self)
    return get(self[1] * EACH + 2)
end

function getters.fate(self)
    local fate = get(self[1] * EACH + 3)
    return fate == 1 and "dropped" or fate == 2 and "punted" or nil
end

function getters.side(self)
    return get(self[1] * EACH + 4)
end

local function trigger(name, cause)
    if type(name) ~= "string" then
        error("trigger: expected the name of a trigger", 0)
    end
    if not current then
        error("trigger: only while a packet is looked at", 0)
    end
    fire(current, name, cause ~= nil and tostring(cause) or "")
end

_G.taut = {
    settings = host.settings, counter = counter, trigger = trigger,
    ip4 = packets.ip4, ip4_text = packets.ip4_text, mac = packets.mac, mac_text = packets.mac_text,
}
_G.trigger = trigger
_G.print = host.print

local rows = {}

-- Makes the rows with the flows' numbers, which have these names and are stored after the numbers of 64 packets.
local function ready(names, get_number, set_number)
    get, set = get_number, set_number
    local each, places = #names, {}
    for at = 1, each do
        places[names[at]] = 64 * EACH + at - 1
    end
    local function place(self, key)
        local at = places[key]
        if not at then
            error(format("a flow has no %s: the table `flow` names what is remembered", tostring(key)), 0)
        end
        return self[1] * each + at
    end
    local meta = { __metatable = false }
    function meta.__index(self, key)
        return get(place(self, key))
    end
    function meta.__newindex(self, key, value)
        local at = place(self, key)
        if type(value) ~= "number" then
            error(format("flow.%s: expected a number, got %s", tostring(key), type(value)), 0)
        end
        set(at, value)
    end
    for row = 1, 64 do
        rows[row] = setmetatable({ row - 1 }, meta)
    end
end

-- Calls `analyse` for each of the first `n` packets.
local function see(analyse, n)
    fill(n)
    for slot = 0, n - 1 do
        current = slot
        -- A packet without a flow has row -1, so `analyse` gets nil for it.
        analyse(batch[slot + 1], rows[get(slot * EACH + 5) + 1])
    end
    current = nil
end

return ready, see
