-- Sends many flows from the first port, and counts packets and flows at each of the other ports, which are the receive
-- queues of one interface, as MoonGen's rss does: --port SPEC --port af_xdp:eth1,queue=0 --port af_xdp:eth1,queue=1
--
--   taut script examples/lua/receive_queues.lua --port SPEC --port SPEC ... -- [RATE] [FLOWS] [SECONDS]

local FIRST = 1000

function queue(index, seconds)
    local packets, seen, flows = taut.counter("packets of queue " .. index - 1), {}, 0
    taut.receive(taut.port(index), function(batch)
        for _, packet in ipairs(batch) do
            if packet.udp.present then
                packets:add()
                local flow = packet.udp.src_port
                if not seen[flow] then
                    seen[flow], flows = true, flows + 1
                end
            end
        end
    end, { seconds = seconds, together = taut.ports() })
    taut.counter("flows of queue " .. index - 1):add(flows)
    return packets.value, flows
end

function load(rate, flows, seconds)
    local flow = 0
    local result = taut.send(taut.port(1), function(batch)
        for _, packet in ipairs(batch) do
            packet.udp.src_port = FIRST + flow
            flow = (flow + 1) % flows
        end
    end, { rate = rate, seconds = seconds, together = taut.ports(), src_port = FIRST .. "-" .. FIRST + flows - 1 })
    taut.counter("sent"):add(result.sent)
    return result.sent
end

function main()
    local rate, flows, seconds = taut.args[1] or "100k", tonumber(taut.args[2] or "100"), tonumber(taut.args[3] or "10")
    local tasks = {}
    for index = 2, taut.ports() do
        tasks[index - 1] = taut.task(nil, "queue", index, seconds)
    end
    local sender = taut.task(nil, "load", rate, flows, seconds)
    print("sent " .. sender:wait() .. " packets of " .. flows .. " flows")
    for number, task in ipairs(tasks) do
        local packets, seen = task:wait()
        print(string.format("queue %d: %d packets of %d flows", number, packets, seen))
    end
end
