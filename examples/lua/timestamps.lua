-- Records the latency of single packets, one every 100 us, in the script's own histogram, without or with load, as
-- MoonGen's timestamps-software does. Timestamps are the generator's: read last before sending, first after receiving.
--
--   taut script examples/lua/timestamps.lua --port SPEC [--port SPEC] -- [SECONDS] [SIZE] [LOAD]

local seconds, size, load = tonumber(taut.args[1] or "5"), taut.args[2] or "84", taut.args[3]
local latency = taut.histogram("latency by the script")
local unstamped = taut.counter("packets without a stamp")
local worst = { ns = 0, sequence = 0 }

local streams = { taut.stream { size = size, rate = 10000, priority = 1 } }
if load then
    streams[2] = taut.stream { size = 64, rate = load }
end

local result = taut.run {
    streams = streams, seconds = seconds,
    on_receive = function(batch)
        for _, packet in ipairs(batch) do
            local ns = packet.latency_ns
            if packet.stream == 2 then
                -- Load is not recorded.
            elseif ns then
                latency:record(ns)
                if ns > worst.ns then
                    worst.ns, worst.sequence = ns, packet.sequence
                end
            else
                unstamped:add(1)
            end
        end
    end,
}
print(string.format("sent %d, received %d", result.sent, result.received))
for _, percent in ipairs { 0, 25, 50, 75, 99, 100 } do
    print(string.format("%3d %% within %.2f us", percent, (latency:percentile(percent) or 0) / 1e3))
end
print(string.format("the slowest was packet %d: %.2f us", worst.sequence, worst.ns / 1e3))
