-- Sends IPFIX messages (RFC 7011): first a template, then records of random flows, at one rate or in turns at that rate
-- and twice it, as MoonGen's ipfix-generation does.
--
--   taut script examples/lua/ipfix.lua --port SPEC -- [RATE] [RECORDS] [SECONDS] [TURN]

local rate, records = tonumber(taut.args[1] or "1000"), tonumber(taut.args[2] or "10")
local seconds, turn = tonumber(taut.args[3] or "10"), tonumber(taut.args[4] or "0")
local random = math.random
local messages, flows = taut.counter("messages"), taut.counter("flow records")

local DOMAIN, TEMPLATE = 1, 256
-- Information elements and their lengths: sourceIPv4Address, destinationIPv4Address, protocolIdentifier,
-- sourceTransportPort, destinationTransportPort.
local FIELDS = { { 8, 4 }, { 12, 4 }, { 4, 1 }, { 7, 2 }, { 11, 2 } }
local HEADERS, MESSAGE, SET = 42, 16, 4
local record_bytes, template_bytes = 0, SET + 4 + #FIELDS * 4
for _, field in ipairs(FIELDS) do
    record_bytes = record_bytes + field[2]
end

local function lengths(packet, bytes)
    packet:resize(HEADERS + bytes)
    packet.ip4.length, packet.udp.length = 28 + bytes, 8 + bytes
    packet:set_u16(HEADERS, 10)
    packet:set_u16(HEADERS + 2, bytes)
    packet:set_u32(HEADERS + 4, os.time())
    packet:set_u32(HEADERS + 8, flows.value % 2 ^ 32)
    packet:set_u32(HEADERS + 12, DOMAIN)
end

local function template(packet)
    lengths(packet, MESSAGE + template_bytes)
    local at = HEADERS + MESSAGE
    packet:set_u16(at, 2)
    packet:set_u16(at + 2, template_bytes)
    packet:set_u16(at + 4, TEMPLATE)
    packet:set_u16(at + 6, #FIELDS)
    for i, field in ipairs(FIELDS) do
        packet:set_u16(at + 4 + i * 4, field[1])
        packet:set_u16(at + 6 + i * 4, field[2])
    end
end

local function data(packet)
    local bytes = SET + records * record_bytes
    lengths(packet, MESSAGE + bytes)
    local at = HEADERS + MESSAGE
    packet:set_u16(at, TEMPLATE)
    packet:set_u16(at + 2, bytes)
    at = at + SET
    for _ = 1, records do
        packet:set_u32(at, random(0x48000001, 0x90ffffff))
        packet:set_u32(at + 4, random(0x48000001, 0x90ffffff))
        packet:set_u8(at + 8, random(2) == 1 and 6 or 17)
        packet:set_u16(at + 9, random(80, 100))
        packet:set_u16(at + 11, random(180, 200))
        at = at + record_bytes
    end
    flows:add(records)
end

-- The template is repeated, because UDP may lose it (RFC 7011, section 8.1).
local function craft(batch)
    for _, packet in ipairs(batch) do
        if messages.value % 100 == 0 then
            template(packet)
        else
            data(packet)
        end
        messages:add()
    end
end

local left, factor, sent = seconds, 1, 0
while left > 0 and taut.running() do
    local part = turn > 0 and math.min(turn, left) or left
    local r = taut.send(taut.port(1), craft,
        { rate = rate * factor, seconds = part, size = 512, dst_port = 4739, stamp = false })
    sent, left, factor = sent + r.sent, left - part, 3 - factor
end
print(string.format("sent %d messages", sent))
