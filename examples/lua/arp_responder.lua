-- Answers ARP requests for one address (RFC 826), and ICMP echo requests to that address, for a limited time.
--
--   taut script examples/lua/arp_responder.lua --port SPEC -- [ADDRESS] [MAC] [SECONDS]

local address = taut.ip4(taut.args[1] or "10.0.0.2")
local mac = taut.mac(taut.args[2] or "02:00:00:00:00:02")
local seconds = tonumber(taut.args[3] or "10")
local answered, other = taut.counter("answered"), taut.counter("other")

local REQUEST, REPLY = 1, 2
local ECHO_REQUEST, ECHO_REPLY = 8, 0

taut.receive(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        local eth, arp, icmp, ip4 = packet.eth, packet.arp, packet.icmp, packet.ip4
        if arp.present and arp.op == REQUEST and arp.target_ip == address then
            arp.op, arp.target_mac, arp.target_ip = REPLY, arp.sender_mac, arp.sender_ip
            arp.sender_mac, arp.sender_ip = mac, address
            eth.dst, eth.src = eth.src, mac
            packet:send_back()
            answered:add()
        elseif icmp.present and ip4.present and ip4.dst == address and icmp.type == ECHO_REQUEST then
            icmp.type, ip4.dst, ip4.src = ECHO_REPLY, ip4.src, address
            eth.dst, eth.src = eth.src, mac
            packet:send_back()
            answered:add()
        else
            other:add()
        end
    end
end, { seconds = seconds })
