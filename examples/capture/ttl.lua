-- Mean TTL of each flow and direction: fires the trigger `ttl` for a packet whose TTL (IPv6: hop limit) is far from the
-- mean of the earlier packets. Packets on another path or from another sender have such a TTL.
--
--     taut capture eth0 --dump dumps --trigger ttl --analyse ttl.lua

local deviation = taut.settings.deviation or 2
-- The number of packets after which the mean is used.
local least = taut.settings.packets or 5

flow = { "count_1", "count_2", "mean_1", "mean_2" }
local count, mean = { "count_1", "count_2" }, { "mean_1", "mean_2" }

function analyse(packet, flow)
    local ttl
    if not flow then
        return
    elseif packet.ip4.present then
        ttl = packet.ip4.ttl
    elseif packet.ip6.present then
        ttl = packet.ip6.hop_limit
    else
        -- The capture stores only a part of this packet, which a NIC may have merged from several packets.
        return
    end
    local side = packet.side
    local n, m = flow[count[side]], flow[mean[side]]
    if n >= least and math.abs(ttl - m) > deviation then
        trigger("ttl", ("TTL %d after a mean of %.1f in %d packets"):format(ttl, m, n))
    end
    flow[count[side]] = n + 1
    flow[mean[side]] = m + (ttl - m) / (n + 1)
end
