-- The view of packets in scripts: batches of packets with named fields. It uses only functions that are safe with any
-- arguments, so nothing in this file has to be hidden from scripts.

local memory, host = ...
local len, field, has = memory.len, memory.field, memory.has
local type, error, load, setmetatable, tostring, pairs = type, error, load, setmetatable, tostring, pairs
local format, floor = string.format, math.floor

-- ---- addresses ----

local ip4_number, ip4_text, mac_number, mac_text

function ip4_number(text)
    local a, b, c, d = text:match("^(%d+)%.(%d+)%.(%d+)%.(%d+)$")
    a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
    if not a or a > 255 or b > 255 or c > 255 or d > 255 then
        error(format('"%s": expected an IPv4 address such as 10.0.0.1', text), 0)
    end
    return ((a * 256 + b) * 256 + c) * 256 + d
end

function ip4_text(number)
    return format("%d.%d.%d.%d", floor(number / 16777216) % 256, floor(number / 65536) % 256,
        floor(number / 256) % 256, number % 256)
end

function mac_number(text)
    local number, groups = 0, 0
    for group in text:gmatch("[^:]+") do
        local byte = #group <= 2 and tonumber(group, 16)
        if not byte then
            groups = 99
            break
        end
        number, groups = number * 256 + byte, groups + 1
    end
    if groups ~= 6 then
        error(format('"%s": expected a MAC address such as 02:00:00:00:00:01', text), 0)
    end
    return number
end

function mac_text(number)
    local parts = {}
    for i = 6, 1, -1 do
        parts[i] = format("%02x", number % 256)
        number = floor(number / 256)
    end
    return table.concat(parts, ":")
end

-- ---- headers and their fields ----

-- The fields of each header: offset in the header, and width in bits or kind of address.
local ip4 = {
    tos = { 1, 8 }, length = { 2, 16 }, id = { 4, 16 }, ttl = { 8, 8 }, protocol = { 9, 8 },
    checksum = { 10, 16 }, src = { 12, "ip4" }, dst = { 16, "ip4" },
}
local ip6 = {
    length = { 4, 16 }, next_header = { 6, 8 }, hop_limit = { 7, 8 }, src = { 8, "ip6" }, dst = { 24, "ip6" },
    src_low = { 20, 32 }, dst_low = { 36, 32 },
}
local udp = { src_port = { 0, 16 }, dst_port = { 2, 16 }, length = { 4, 16 }, checksum = { 6, 16 } }
local tcp = {
    src_port = { 0, 16 }, dst_port = { 2, 16 }, seq = { 4, 32 }, ack = { 8, 32 }, flags = { 13, 8 },
    window = { 14, 16 }, checksum = { 16, 16 },
}
local icmp = { type = { 0, 8 }, code = { 1, 8 }, checksum = { 2, 16 }, id = { 4, 16 }, seq = { 6, 16 } }
-- The numbers of the headers are those in headers.rs.
local headers = {
    { "eth", 0, { dst = { 0, "mac" }, src = { 6, "mac" }, type = { 12, 16 } } },
    { "vlan", 1, { tci = { 0, 16 }, type = { 2, 16 } } },
    { "ip4", 2, ip4 },
    { "ip6", 3, ip6 },
    { "udp", 4, udp },
    { "tcp", 5, tcp },
    { "icmp", 6, icmp },
    { "arp", 7, {
        op = { 6, 16 }, sender_mac = { 8, "mac" }, sender_ip = { 14, "ip4" }, target_mac = { 18, "mac" },
        target_ip = { 24, "ip4" },
    } },
    { "gtpu", 8, { flags = { 0, 8 }, type = { 1, 8 }, length = { 2, 16 }, teid = { 4, 32 } } },
    { "payload", 9, {} },
}
local user_headers = {
    { "ip4", 10, ip4 }, { "ip6", 11, ip6 }, { "udp", 12, udp }, { "tcp", 13, tcp }, { "icmp", 14, icmp },
    { "payload", 15, {} },
}

-- Each accessor is compiled from its own source, so that its offsets are constants for LuaJIT.
local numeric = [[
local memory, wrong, name, to_number = ...
local get, put, type = memory.get_field%d, memory.put_field%d, type
return function(self)
    return get(self[1], %d, %d)
end, function(self, value)
    if type(value) ~= "number" then
        value = to_number(value)
    end
    if not (value >= 0 and value <= %d) then
        wrong(name, %d, value)
    end
    put(self[1], %d, %d, value)
end]]

local function wrong(name, most, value)
    error(format("%s: expected a number from 0 to %.0f, got %s", name, most, tostring(value)), 0)
end

local function converter(name, kind)
    return function(value)
        if type(value) == "string" and kind == "ip4" then
            return ip4_number(value)
        elseif type(value) == "string" and kind == "mac" then
            return mac_number(value)
        end
        error(format("%s: expected a number, got %s", name, type(value)), 0)
    end
end

local function accessors(name, header, offset, kind)
    if kind == "ip6" then
        return function(self)
            local slot = self[1]
            return host.ip6_text(memory.bytes(slot, field(slot, header, offset, 16), 16))
        end, function(self, text)
            local slot = self[1]
            memory.copy(slot, field(slot, header, offset, 16), host.ip6_bytes(text))
        end
    end
    local bits = kind == "ip4" and 32 or kind == "mac" and 48 or kind
    local most = 2 ^ bits - 1
    local source = format(numeric, bits, bits, header, offset, most, most, header, offset)
    return load(source, "=taut")(memory, wrong, name, converter(name, kind))
end

local function view_of(prefix, definition)
    local name, header, fields = definition[1], definition[2], definition[3]
    local getters, setters = {}, {}
    for key, place in pairs(fields) do
        getters[key], setters[key] = accessors(prefix .. name .. "." .. key, header, place[1], place[2])
    end
    getters.present = function(self)
        return has(self[1], header)
    end
    getters.offset = function(self)
        return field(self[1], header, 0, 0)
    end
    local function unknown(key)
        error(format("a packet's %s%s has no field %s", prefix, name, tostring(key)), 0)
    end
    local meta = { __metatable = false }
    function meta.__index(self, key)
        local get = getters[key]
        if not get then
            unknown(key)
        end
        return get(self)
    end
    function meta.__newindex(self, key, value)
        local set = setters[key]
        if not set then
            unknown(key)
        end
        set(self, value)
    end
    return function(slot)
        return setmetatable({ slot }, meta)
    end
end

-- ---- packets and batches ----

-- The methods and the getters of packets; the interface of each kind of script adds further ones.
local methods, getters = {}, {}
local packet_meta = { __metatable = false }

for _, bits in ipairs { 8, 16, 32, 48 } do
    local get, put, most = memory["get" .. bits], memory["put" .. bits], 2 ^ bits - 1
    methods["u" .. bits] = function(self, offset)
        return get(self[1], offset)
    end
    local name = "set_u" .. bits
    methods[name] = function(self, offset, value)
        if type(value) ~= "number" or not (value >= 0 and value <= most) then
            wrong(name, most, value)
        end
        put(self[1], offset, value)
    end
end

function methods.bytes(self, offset, n)
    offset = offset or 0
    return memory.bytes(self[1], offset, n or len(self[1]) - offset)
end

function methods.set_bytes(self, offset, bytes)
    memory.copy(self[1], offset, bytes)
end

function getters.len(self)
    return len(self[1])
end

function packet_meta.__index(self, key)
    local method = methods[key]
    if method then
        return method
    end
    local get = getters[key]
    if get then
        return get(self)
    end
    error(format("a packet has no %s", tostring(key)), 0)
end

function packet_meta.__newindex(_, key)
    error(format("a packet has no %s to set", tostring(key)), 0)
end

local views, user_views = {}, {}
for _, definition in ipairs(headers) do
    views[definition[1]] = view_of("", definition)
end
for _, definition in ipairs(user_headers) do
    user_views[definition[1]] = view_of("user.", definition)
end

local packets = {}
for i = 1, 64 do
    local packet = { i - 1, user = {} }
    for name, view in pairs(views) do
        packet[name] = view(i - 1)
    end
    for name, view in pairs(user_views) do
        packet.user[name] = view(i - 1)
    end
    packets[i] = setmetatable(packet, packet_meta)
end

local batch = { n = 0 }
local filled = 0

-- Sets the batch to the first `n` packets.
local function fill(n)
    while filled < n do
        filled = filled + 1
        batch[filled] = packets[filled]
    end
    while filled > n do
        batch[filled] = nil
        filled = filled - 1
    end
    batch.n = n
end

return {
    methods = methods, getters = getters, batch = batch, fill = fill,
    ip4 = ip4_number, ip4_text = ip4_text, mac = mac_number, mac_text = mac_text,
}
