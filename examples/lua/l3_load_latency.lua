-- Sends load on many flows, and measures the latency of a stream with few probes within the load, as MoonGen's
-- l3-load-latency does. This script measures the load as well.
--
--   taut script examples/lua/l3_load_latency.lua --port SPEC [--port SPEC] -- [RATE] [FLOWS] [SIZE] [SECONDS]

local rate, flows = taut.args[1] or "1M", tonumber(taut.args[2] or "4")
local size, seconds = taut.args[3] or "64", tonumber(taut.args[4] or "10")

local flow = 0
local load = taut.stream {
    name = "load", rate = rate, size = size,
    craft = function(batch)
        for _, packet in ipairs(batch) do
            packet.ip4.src = 0x0a000001 + flow
            flow = (flow + 1) % flows
        end
    end,
}
local probes = taut.stream { name = "probes", rate = "1k", size = 84, pattern = "poisson", priority = 1 }

local result = taut.run { streams = { load, probes }, seconds = seconds }
for _, stream in ipairs(result.streams) do
    print(string.format("%-7s sent %d, received %d, lost %d", stream.name, stream.sent, stream.received, stream.lost))
    local latency = stream.latency
    if latency then
        print(string.format("        latency min %.2f us, median %.2f us, 99 %% %.2f us, max %.2f us",
            latency.min_ns / 1e3, latency.p50_ns / 1e3, (latency.p99_ns or latency.max_ns) / 1e3, latency.max_ns / 1e3))
    end
end
