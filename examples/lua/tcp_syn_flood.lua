-- Sends TCP SYN segments from many source addresses, IPv4 or IPv6, out of every port, as MoonGen's l3-tcp-syn-flood
-- does.
--
--   taut script examples/lua/tcp_syn_flood.lua --port SPEC ... -- [RATE] [SECONDS] [SOURCE] [DESTINATION] [ADDRESSES]

local SYN = 2

function flood(index, rate, seconds, source, destination, addresses)
    local is_ip6 = source:find(":", 1, true) ~= nil
    local first = not is_ip6 and taut.ip4(source)
    local next_address = 0
    local result = taut.send(taut.port(index), function(batch)
        for _, packet in ipairs(batch) do
            if is_ip6 then
                packet.ip6.src_low = next_address
            else
                packet.ip4.src = first + next_address
            end
            next_address = (next_address + 1) % addresses
            local tcp = packet.tcp
            tcp.flags, tcp.seq, tcp.ack, tcp.window = SYN, 1, 0, 10
        end
    end, {
        rate = rate, seconds = seconds, protocol = "tcp", size = is_ip6 and 78 or 64, src_ip = source,
        dst_ip = destination,
    })
    taut.counter("sent"):add(result.sent)
    return result.sent, result.sent_pps
end

function main()
    local rate, seconds = taut.args[1] or "1M", tonumber(taut.args[2] or "10")
    local source, destination = taut.args[3] or "10.0.0.1", taut.args[4] or "10.1.0.1"
    local addresses = tonumber(taut.args[5] or "100")
    local tasks = {}
    for index = 1, taut.ports() do
        tasks[index] = taut.task(nil, "flood", index, rate, seconds, source, destination, addresses)
    end
    for index, task in ipairs(tasks) do
        local sent, pps = task:wait()
        print(string.format("port %d: %d segments, %.3f Mpkt/s", index, sent, pps / 1e6))
    end
end
