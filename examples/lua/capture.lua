-- Writes the packets that arrive at the first port, or those to one UDP or TCP port, to the second one, a file, as
-- MoonGen's dump-pkts does: --port SPEC --port pcap:FILE,role=write
--
--   taut script examples/lua/capture.lua --port SPEC --port SPEC -- [SECONDS] [DESTINATION PORT]

local seconds, wanted = tonumber(taut.args[1] or "10"), tonumber(taut.args[2])
local written, left_out = taut.counter("written"), taut.counter("left out")

local function is_wanted(packet)
    local udp, tcp = packet.udp, packet.tcp
    return not wanted or udp.present and udp.dst_port == wanted or tcp.present and tcp.dst_port == wanted
end

local result = taut.receive(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        if is_wanted(packet) then
            packet:send_on()
            written:add()
        else
            left_out:add()
        end
    end
end, { seconds = seconds, send = taut.port(2) })
local lost = result.replies_lost
print(string.format("%d packets written, %d left out, no space for %d", written.value - lost, left_out.value, lost))
