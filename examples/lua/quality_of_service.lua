-- Sends two classes of traffic to two UDP ports at rates of their own, and compares what arrives and how late, as
-- MoonGen's quality-of-service-test does.
--
--   taut script examples/lua/quality_of_service.lua --port SPEC [--port SPEC] -- [FOREGROUND] [BACKGROUND] [SECONDS]

local foreground, background = taut.args[1] or "100k", taut.args[2] or "400k"
local seconds, random = tonumber(taut.args[3] or "10"), math.random

local function class(name, rate, dst_port, tos, priority)
    return taut.stream {
        name = name, rate = rate, size = 128, dst_port = dst_port, priority = priority,
        craft = function(batch)
            for _, packet in ipairs(batch) do
                packet.ip4.src, packet.ip4.tos = 0xc0a80001 + random(0, 255), tos
            end
        end,
    }
end

-- Expedited forwarding (RFC 3246), and best effort.
local result = taut.run {
    streams = { class("foreground", foreground, 42, 46 * 4, 1), class("background", background, 43, 0, 0) },
    seconds = seconds,
}
for _, stream in ipairs(result.streams) do
    local latency = stream.latency or { p50_ns = 0, max_ns = 0 }
    print(string.format("%-11s sent %d, received %d, lost %d, median latency %.2f us, longest %.2f us", stream.name,
        stream.sent, stream.received, stream.lost, latency.p50_ns / 1e3, latency.max_ns / 1e3))
    taut.counter("sent " .. stream.name):add(stream.sent)
    taut.counter("received " .. stream.name):add(stream.received)
end
