-- The functions by which scripts access packets. Each function is safe with any arguments: a slot is masked to 0 to 63,
-- and an offset is checked against the length of the packet currently borrowed in that slot (0 if there is none).
-- A script cannot replace a function that is called here, because all of them are stored in locals.

local ffi, address, finder = ...
local band, rshift = bit.band, bit.rshift
local tonumber, tostring, type, error, floor, pairs = tonumber, tostring, type, error, math.floor, pairs

ffi.cdef [[
typedef struct {
    uint8_t *data[64];
    double latency_ns[64];
    double sequence[64];
    double arrived_ns[64];
    double port_stamp[64];
    uint32_t len[64];
    uint32_t room[64];
    int32_t stream[64];
    uint16_t headers[1024];
    uint8_t mark[64];
    uint8_t port[64];
    uint8_t located[64];
} taut_window;
]]
local window = ffi.cast("taut_window *", address)
-- Locates the headers of the packet in a slot. LuaJIT compiles the call, because it calls a C function.
local locate = ffi.cast("void (*)(taut_window *, uint32_t)", finder)
local data, len, headers, mark, port = window.data, window.len, window.headers, window.mark, window.port
local located = window.located
local stream, sequence, latency_ns = window.stream, window.sequence, window.latency_ns
local arrived_ns, port_stamp, room = window.arrived_ns, window.port_stamp, window.room
local copy, zero, string_of = ffi.copy, ffi.fill, ffi.string

local function out_of_range(slot, offset, width)
    if len[slot] == 0 then
        error("this packet is not there any more: packets are lent for one call", 0)
    end
    error("bytes " .. tostring(offset) .. " to " .. tostring(offset + width - 1) ..
        " are not in a packet of " .. len[slot] .. " bytes", 0)
end

-- Returns the checked slot and offset; raises an error unless the packet has `width` bytes at the offset.
local function place(slot, offset, width)
    slot = tonumber(band(slot, 63))
    offset = tonumber(offset)
    if not offset then
        error("expected an offset in bytes, counted from 0", 0)
    end
    if not (offset >= 0 and offset + width <= len[slot]) then
        out_of_range(slot, offset, width)
    end
    return slot, floor(offset)
end

-- Returns the checked slot, and the offset in the packet of the `width` bytes at `offset` in a header. Raises an error
-- if the packet has no such header. `offset` and `width` are numbers.
local function field(slot, header, offset, width)
    slot, header = tonumber(band(slot, 63)), tonumber(band(header, 15))
    local start = offset
    -- The Ethernet header has the same position in every frame, so it need not be located.
    if header ~= 0 or len[slot] < 14 then
        if located[slot] == 0 then
            locate(window, slot)
        end
        start = headers[slot * 16 + header] + offset
    end
    if not (start >= 0 and start + width <= len[slot]) then
        if len[slot] == 0 then
            out_of_range(slot, 0, 1)
        end
        error("the packet has no such header", 0)
    end
    return slot, start
end

local memory = {}

function memory.len(slot)
    return len[band(slot, 63)]
end

function memory.field(slot, header, offset, width)
    local _, start = field(slot, tonumber(header), tonumber(offset), tonumber(width))
    return start
end

function memory.has(slot, header)
    slot, header = tonumber(band(slot, 63)), tonumber(band(header, 15))
    if located[slot] == 0 then
        locate(window, slot)
    end
    return headers[slot * 16 + header] < len[slot]
end

-- These functions access numbers in network byte order at checked offsets. They access single bytes, because LuaJIT
-- assumes that accesses of different widths never overlap. They have no loops, because a loop here would prevent LuaJIT
-- from compiling a surrounding loop of the script as one trace.
local function load16(bytes, offset)
    return bytes[offset] * 256 + bytes[offset + 1]
end

local function load32(bytes, offset)
    return load16(bytes, offset) * 65536 + load16(bytes, offset + 2)
end

local function store16(bytes, offset, value)
    bytes[offset], bytes[offset + 1] = band(rshift(value, 8), 0xff), band(value, 0xff)
end

local function store32(bytes, offset, value)
    bytes[offset], bytes[offset + 1] = rshift(value, 24), band(rshift(value, 16), 0xff)
    bytes[offset + 2], bytes[offset + 3] = band(rshift(value, 8), 0xff), band(value, 0xff)
end

local load = {
    [8] = function(bytes, offset)
        return bytes[offset]
    end,
    [16] = load16,
    [32] = load32,
    [48] = function(bytes, offset)
        return load16(bytes, offset) * 4294967296 + load32(bytes, offset + 2)
    end,
}

local store = {
    [8] = function(bytes, offset, value)
        bytes[offset] = band(value, 0xff)
    end,
    [16] = store16,
    [32] = store32,
    [48] = function(bytes, offset, value)
        local high = floor(value / 4294967296)
        store16(bytes, offset, high)
        store32(bytes, offset + 2, value - high * 4294967296)
    end,
}

-- Defines memory.get48(slot, offset) and memory.put48(slot, offset, value), and for fields of a header
-- get_field48(slot, header, offset) and put_field48(slot, header, offset, value); likewise for other widths.
for bits, load in pairs(load) do
    local store, width = store[bits], bits / 8
    memory["get" .. bits] = function(slot, offset)
        slot, offset = place(slot, offset, width)
        return load(data[slot], offset)
    end
    memory["put" .. bits] = function(slot, offset, value)
        slot, offset = place(slot, offset, width)
        store(data[slot], offset, value)
    end
    memory["get_field" .. bits] = function(slot, header, offset)
        slot, offset = field(slot, header, tonumber(offset), width)
        return load(data[slot], offset)
    end
    memory["put_field" .. bits] = function(slot, header, offset, value)
        slot, offset = field(slot, header, tonumber(offset), width)
        store(data[slot], offset, value)
    end
end

function memory.bytes(slot, offset, n)
    n = tonumber(n)
    if not (n and n >= 0) then
        error("expected a number of bytes", 0)
    end
    slot, offset = place(slot, offset, n)
    return string_of(data[slot] + offset, floor(n))
end

function memory.copy(slot, offset, bytes)
    if type(bytes) ~= "string" then
        error("expected a string of bytes", 0)
    end
    slot, offset = place(slot, offset, #bytes)
    copy(data[slot] + offset, bytes, #bytes)
end

-- Changes the length of a packet; bytes that are added are 0. A packet outside of a call, or one that may not be changed,
-- has no room.
function memory.resize(slot, n)
    slot, n = tonumber(band(slot, 63)), tonumber(n)
    if len[slot] == 0 then
        out_of_range(slot, 0, 1)
    end
    if not (n and n >= 14 and n <= room[slot]) then
        error("expected a length from 14 to " .. tostring(room[slot]) .. " bytes, got " .. tostring(n), 0)
    end
    n = floor(n)
    if n > len[slot] then
        zero(data[slot] + len[slot], n - len[slot])
    end
    len[slot] = n
end

-- Marks a packet with a number other than 0, 1 by default; the host defines the meaning of the number.
function memory.mark(slot, value)
    mark[band(slot, 63)] = band(value or 1, 255)
end

-- Sets the egress port of a packet, numbered from 0.
function memory.send(slot, to)
    port[band(slot, 63)] = band(to, 255)
end

function memory.stream(slot)
    return stream[band(slot, 63)]
end

function memory.sequence(slot)
    return sequence[band(slot, 63)]
end

function memory.latency_ns(slot)
    return latency_ns[band(slot, 63)]
end

function memory.arrived_ns(slot)
    return arrived_ns[band(slot, 63)]
end

function memory.port_stamp(slot)
    return port_stamp[band(slot, 63)]
end

-- Returns two functions: one stores a number in a buffer of `capacity` numbers, and calls `take` when the buffer is
-- full; the other calls `take` for the rest. The cell before the buffer contains the count of stored numbers.
-- `address` comes from the host: scripts have no access to this function.
function memory.recorder(address, capacity, take)
    local cells = ffi.cast("double *", address)
    local function record(value)
        local n = cells[0] + 1
        cells[n] = value
        if n == capacity then
            n = 0
            take(capacity)
        end
        cells[0] = n
    end
    local function rest()
        local count = tonumber(cells[0])
        cells[0] = 0
        take(count)
    end
    return record, rest
end

-- Returns functions that read and write the number at `address`, which the host provides.
function memory.number(address)
    local cell = ffi.cast("double *", address)
    return function()
        return cell[0]
    end, function(value)
        cell[0] = value
    end
end

-- Returns functions that read and write one of `count` numbers at `address` by index, from 0. The host provides both.
function memory.numbers(address, count)
    local cells = ffi.cast("double *", address)
    local function place(index)
        if type(index) ~= "number" or not (index >= 0 and index < count) then
            error("no number is there", 0)
        end
        return floor(index)
    end
    return function(index)
        return cells[place(index)]
    end, function(index, value)
        cells[place(index)] = value
    end
end

return memory
