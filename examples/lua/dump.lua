-- Prints the packets that arrive, in hexadecimal, as MoonGen's dump does.
--
--   taut script examples/lua/dump.lua --port SPEC -- [SECONDS] [PACKETS]

local seconds, most = tonumber(taut.args[1] or "10"), tonumber(taut.args[2] or "100")
local counted = taut.counter("packets")

local function dump(packet)
    print(string.format("%.6f s, %d bytes, %s > %s, type 0x%04x", packet.arrived_ns / 1e9, packet.len,
        taut.mac_text(packet.eth.src), taut.mac_text(packet.eth.dst), packet.eth.type))
    for offset = 0, packet.len - 1, 16 do
        local bytes = packet:bytes(offset, math.min(16, packet.len - offset))
        print(string.format("    %04x  %s", offset, (bytes:gsub(".", function(byte)
            return string.format("%02x ", byte:byte())
        end))))
    end
end

taut.receive(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        if packet.len >= 14 and counted.value < most then
            dump(packet)
        end
        counted:add()
    end
end, { seconds = seconds })
