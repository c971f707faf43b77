-- Sends at a rate by one of the ways to keep gaps, and measures the gaps, as MoonGen's rate-control-methods does.
-- software: each packet is sent when it is due. fill: frames in between fill a line of the rate LINE. nic: the card
-- limits its rate (--port dpdk:...,rate=MBIT). Patterns: constant, poisson, burst(N) and others.
--
--   taut script examples/lua/pacing.lua --port SPEC [--port SPEC] -- [PACING] [RATE] [PATTERN] [SECONDS] [LINE]

local pacing, rate = taut.args[1] or "software", taut.args[2] or "1M"
local pattern, seconds = taut.args[3] or "constant", tonumber(taut.args[4] or "10")
local line = taut.args[5] or "10Gbit/s"

local gaps, last = taut.histogram("time between arrivals"), nil
local result = taut.run {
    stream = taut.stream { size = 64, pattern = pattern }, rate = rate, seconds = seconds, pacing = pacing,
    line = pacing == "fill" and line or nil,
    on_receive = function(batch)
        for _, packet in ipairs(batch) do
            if packet.latency_ns then
                local at = packet.port_stamp or packet.arrived_ns
                if last and at >= last then
                    gaps:record(at - last)
                end
                last = at
            end
        end
    end,
}
print(string.format("sent %.4f Mpkt/s, received %d of %d", result.sent_pps / 1e6, result.received, result.sent))
if result.gap then
    local gap = result.gap
    print(string.format("gaps at the sender: asked %.1f ns, mean %.1f ns, mean squared error %.1f ns2", gap.asked_ns,
        gap.mean_ns, gap.mse_ns2))
end
taut.counter("sent"):add(result.sent)
taut.counter("received"):add(result.received)
