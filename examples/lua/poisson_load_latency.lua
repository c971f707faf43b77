-- Sends load with exponentially distributed gaps, and measures the latency of probes within it, as MoonGen's
-- l2-poisson-load-latency does.
--
--   taut script examples/lua/poisson_load_latency.lua --port SPEC [--port SPEC] -- [RATE] [SIZE] [SECONDS]

local rate, size, seconds = taut.args[1] or "2M", taut.args[2] or "64", tonumber(taut.args[3] or "10")

local result = taut.run {
    streams = {
        taut.stream { name = "load", rate = rate, size = size, pattern = "poisson" },
        taut.stream { name = "probes", rate = "1k", size = size, priority = 1 },
    },
    seconds = seconds,
}
for _, stream in ipairs(result.streams) do
    local latency = stream.latency or { p50_ns = 0, max_ns = 0 }
    print(string.format("%-7s sent %d, lost %d, median latency %.2f us, longest %.2f us", stream.name, stream.sent,
        stream.lost, latency.p50_ns / 1e3, latency.max_ns / 1e3))
    taut.counter("sent " .. stream.name):add(stream.sent)
    taut.counter("received " .. stream.name):add(stream.received)
end
