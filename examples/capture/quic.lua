-- QUIC on any port: fires the trigger `quic` once for each flow that begins with a long header of version 1 (RFC 9000,
-- section 17.2) or 2 (RFC 9369), and counts such flows and their packets.
--
--     taut capture eth0 --dump dumps --trigger quic --after 10s --analyse quic.lua

local versions = { [0x00000001] = 1, [0x6b3343cf] = 2 }
local flows, packets = taut.counter("QUIC flows"), taut.counter("QUIC packets")

flow = { "is_quic" }

-- Returns the QUIC version if the payload begins with a long header of a known version; otherwise returns nil.
local function version(packet)
    local at = packet.payload.offset
    -- A long header begins with its type, the version, and the length of the destination's connection ID.
    if packet.len < at + 6 or packet:u8(at) < 0xc0 or packet:u8(at + 5) > 20 then
        return nil
    end
    return versions[packet:u32(at + 1)]
end

function analyse(packet, flow)
    if not flow or not packet.udp.present or not packet.payload.present then
        return
    end
    if flow.is_quic == 0 then
        local found = version(packet)
        if not found then
            return
        end
        flow.is_quic = 1
        flows:add()
        trigger("quic", ("version %d to port %d"):format(found, packet.udp.dst_port))
    end
    packets:add()
end
