-- A function of taut in Lua. It swaps the source and destination MAC addresses, counts packets, and drops frames that
-- are too short for both.
--
--     taut forward --port pcap:in.pcap --port pcap:out.pcap,role=write --function 'lua(file=mac_swap.lua)'

local swapped = taut.counter("MAC addresses swapped")

function process(batch)
    local count = 0
    for i = 1, batch.n do
        local packet = batch[i]
        if packet.len < 14 then
            packet:drop()
        else
            local eth = packet.eth
            eth.dst, eth.src = eth.src, eth.dst
            count = count + 1
        end
    end
    swapped:add(count)
end
