-- Sends from one task for each port, each on its own core, as MoonGen's tx-multi-core does.
--
--   taut script examples/lua/tx_multi_core.lua --port SPEC --port SPEC ... -- [RATE] [SECONDS] [CORE ...]

local random = math.random

-- Runs in its own Lua state: only numbers, strings, and tables of these can be passed.
function load_port(index, rate, seconds)
    local sent = taut.counter("sent by all tasks")
    local r = taut.send(taut.port(index), function(batch)
        for _, packet in ipairs(batch) do
            packet.ip4.dst = 0x0a000000 + index * 65536 + random(1, 65534)
        end
    end, { rate = rate, seconds = seconds })
    sent:add(r.sent)
    return r.sent, r.sent_pps
end

function main()
    local rate, seconds = taut.args[1] or "1M", tonumber(taut.args[2] or "5")
    local tasks = {}
    for index = 1, taut.ports() do
        tasks[index] = taut.task(tonumber(taut.args[2 + index]), "load_port", index, rate, seconds)
    end
    local total = 0
    for index, task in ipairs(tasks) do
        local sent, pps = task:wait()
        print(string.format("port %d: %d packets, %.3f Mpkt/s", index, sent, pps / 1e6))
        total = total + pps
    end
    print(string.format("together %.3f Mpkt/s", total / 1e6))
end
