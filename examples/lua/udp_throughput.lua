-- Sends UDP load from many addresses, and prints the rates once a second, as MoonGen's udp-throughput does.
--
--   taut script examples/lua/udp_throughput.lua --port SPEC [--port SPEC] -- [RATE] [SIZE] [SECONDS]

local rate, size = taut.args[1] or "1M", taut.args[2] or "64"
local seconds = tonumber(taut.args[3] or "10")
local random = math.random

local sent_before_stop = taut.counter("crafted packets")

local function craft(batch)
    for _, packet in ipairs(batch) do
        packet.ip4.src = 0x0a000000 + random(1, 65534)
        packet.udp.src_port = random(1024, 65535)
    end
    sent_before_stop:add(batch.n)
end

local left = seconds
while left > 0 and taut.running() do
    local part = math.min(left, 1)
    local r = taut.send(taut.port(1), craft, {
        rate = rate, size = size, seconds = part, receive = taut.port(taut.ports()),
        -- The range includes every source port that `craft` sets, so that all returned packets are recognised.
        dst_port = "1024-65535",
    })
    print(string.format("sent %.3f Mpkt/s, received %.3f Mpkt/s, lost %d, refused %d, foreign %d",
        r.sent_pps / 1e6, r.received_pps / 1e6, r.lost, r.refused, r.foreign))
    left = left - part
end
