-- Sends from each of two ports to the other at the same time, and measures the latency of both directions, as MoonGen's
-- l2-load-latency does. Each port has a task: it sends, and receives what the other one sent.
--
--   taut script examples/lua/two_way_latency.lua --port SPEC --port SPEC -- [RATE] [SIZE] [SECONDS] [CORE CORE]

-- Packets of the other task are foreign to this one, so it counts them itself, by their timestamps.
function direction(index, rate, size, seconds)
    local port = taut.port(index)
    local other = 3 - index
    local latency = taut.histogram("latency " .. other .. " to " .. index)
    local received = taut.counter("received " .. other .. " to " .. index)
    local result = taut.run {
        stream = taut.stream { size = size }, rate = rate, seconds = seconds, send = port, receive = port, together = 2,
        on_receive = function(batch)
            for _, packet in ipairs(batch) do
                if packet.latency_ns then
                    received:add()
                    latency:record(packet.latency_ns)
                end
            end
        end,
    }
    taut.counter("sent " .. index .. " to " .. other):add(result.sent)
    return result.sent, received.value, latency:percentile(50), latency:percentile(100)
end

function main()
    local rate, size = taut.args[1] or "1M", taut.args[2] or "64"
    local seconds = tonumber(taut.args[3] or "10")
    local tasks, results = {}, {}
    for index = 1, 2 do
        tasks[index] = taut.task(tonumber(taut.args[3 + index]), "direction", index, rate, size, seconds)
    end
    for index = 1, 2 do
        results[index] = { tasks[index]:wait() }
    end
    for index = 1, 2 do
        local there = results[3 - index]
        print(string.format("%d to %d: sent %d, lost %d, median latency %.2f us, longest %.2f us", index, 3 - index,
            results[index][1], results[index][1] - there[2], (there[3] or 0) / 1e3, (there[4] or 0) / 1e3))
    end
end
