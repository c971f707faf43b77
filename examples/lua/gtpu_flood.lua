-- Sends GTP-U packets with random tunnels and random users: a test of a mobile gateway with lookups that miss.
--
--   taut script examples/lua/gtpu_flood.lua --port SPEC -- [RATE] [SECONDS] [TUNNELS]

local rate, seconds = taut.args[1] or "1M", tonumber(taut.args[2] or "10")
local tunnels = tonumber(taut.args[3] or "4294967295")
local random = math.random

local result = taut.send(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        packet.gtpu.teid = random(1, tunnels)
        packet.user.ip4.src = 0x0a2d0000 + random(1, 65534)
        packet.user.udp.src_port = random(1024, 65535)
    end
end, { protocol = "gtpu", size = 128, rate = rate, seconds = seconds, receive = taut.port(taut.ports()),
    dst_port = "1024-65535" })

print(string.format("sent %d packets (%.3f Mpkt/s), %d came back, foreign %d", result.sent, result.sent_pps / 1e6,
    result.received, result.foreign))
