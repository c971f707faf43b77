-- Sends streams of flows in bursts: each burst has a packet of every flow of a stream, and each stream repeats its
-- bursts before the next one comes; addresses of two streams are STRIDE apart, as in MoonGen's netronome-packetgen.
--
--   taut script examples/lua/packetgen.lua --port SPEC [--port SPEC]
--       -- [RATE] [STREAMS] [BURSTS] [FLOWS] [STRIDE] [SIZE] [SECONDS]

local rate = taut.args[1] or "1M"
local streams, bursts = tonumber(taut.args[2] or "4"), tonumber(taut.args[3] or "2")
local flows, stride = tonumber(taut.args[4] or "16"), tonumber(taut.args[5] or "256")
local size, seconds = taut.args[6] or "imix", tonumber(taut.args[7] or "10")

local stream, burst, flow = 0, 0, 0
local mac, ip = taut.mac("02:10:00:00:00:00"), taut.ip4("10.0.0.0")

-- Counts like an odometer: flows within a burst, bursts within a stream, streams.
local function advance()
    flow = flow + 1
    if flow == flows then
        flow, burst = 0, burst + 1
    end
    if burst == bursts then
        burst, stream = 0, (stream + 1) % streams
    end
end

local result = taut.send(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        local n = stream * stride + flow
        packet.eth.dst, packet.ip4.dst = mac + n, ip + n
        advance()
    end
end, {
    rate = rate, size = size, seconds = seconds, pattern = "burst(" .. math.min(flows, 1000) .. ")",
    receive = taut.port(taut.ports()),
})
print(string.format("sent %d (%.3f Mpkt/s), received %d, lost %d", result.sent, result.sent_pps / 1e6, result.received,
    result.lost))
taut.counter("sent"):add(result.sent)
taut.counter("received"):add(result.received)
