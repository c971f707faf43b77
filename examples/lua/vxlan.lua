-- A VXLAN tunnel endpoint (RFC 7348), or a test of one, as MoonGen's vxlan-example is. Roles:
--   encapsulate  frames of the first port leave through the second one in VXLAN
--   decapsulate  frames in VXLAN of the first port leave through the second one without it
--   plain        sends frames from the first port, and checks that they come back to the second one in VXLAN
--   tunnelled    sends frames in VXLAN, and checks that they come back without it
--
--   taut script examples/lua/vxlan.lua --port SPEC --port SPEC -- ROLE [RATE] [SECONDS] [VNI]

local role, rate = taut.args[1] or "encapsulate", taut.args[2] or "100k"
local seconds, vni = tonumber(taut.args[3] or "10"), tonumber(taut.args[4] or "1000")

-- Lengths of the outer headers: Ethernet, IPv4, UDP, VXLAN.
local OUTER, IP, UDP = 14 + 20 + 8 + 8, 14, 14 + 20
local VXLAN_PORT, LOCAL_EXPERIMENT = 4789, 0x88b5
local outer_src, outer_dst = taut.mac("02:00:00:00:10:01"), taut.mac("02:00:00:00:10:02")
local ip_src, ip_dst = taut.ip4("10.0.0.1"), taut.ip4("10.0.0.2")
local inner_src, inner_dst = taut.mac("02:00:00:00:20:01"), taut.mac("02:00:00:00:20:02")

local function encapsulate(packet)
    local frame = packet:bytes()
    packet:resize(OUTER + #frame)
    packet:set_bytes(OUTER, frame)
    packet:set_u48(0, outer_dst)
    packet:set_u48(6, outer_src)
    packet:set_u16(12, 0x0800)
    packet:set_bytes(IP, "\69\0")
    packet:set_u16(IP + 2, OUTER - IP + #frame)
    packet:set_u32(IP + 4, 0)
    packet:set_bytes(IP + 8, "\64\17\0\0")
    packet:set_u32(IP + 12, ip_src)
    packet:set_u32(IP + 16, ip_dst)
    -- The source port tells flows apart (section 4.2), here by the inner source address.
    packet:set_u16(UDP, 49152 + frame:byte(12) % 16384)
    packet:set_u16(UDP + 2, VXLAN_PORT)
    packet:set_u16(UDP + 4, OUTER - UDP + #frame)
    packet:set_u16(UDP + 6, 0)
    packet:set_u32(UDP + 8, 0x08000000)
    packet:set_u32(UDP + 12, vni * 256)
end

local function is_vxlan(packet)
    return packet.len >= OUTER + 14 and packet:u16(12) == 0x0800 and packet:u16(IP) == 0x4500
        and packet:u8(IP + 9) == 17 and packet:u16(UDP + 2) == VXLAN_PORT and packet:u8(UDP + 8) == 8
        and packet:u32(UDP + 12) == vni * 256
end

local function decapsulate(packet)
    local frame = packet:bytes(OUTER)
    packet:set_bytes(0, frame)
    packet:resize(#frame)
end

local done, other = taut.counter(role), taut.counter("other packets")

local function endpoint(fits, change)
    local result = taut.receive(taut.port(1), function(batch)
        for _, packet in ipairs(batch) do
            if fits(packet) then
                change(packet)
                packet:send_on()
                done:add()
            else
                other:add()
            end
        end
    end, { seconds = seconds, send = taut.port(2) })
    local lost = result.replies_lost
    print(string.format("%s: %d, other packets %d, no space for %d", role, done.value, other.value, lost))
end

local function plain(packet)
    packet:resize(60)
    packet:set_bytes(0, ("\0"):rep(60))
    packet.eth.dst, packet.eth.src, packet.eth.type = inner_dst, inner_src, LOCAL_EXPERIMENT
end

local function test(make, is_right)
    local result = taut.send(taut.port(1), function(batch)
        for _, packet in ipairs(batch) do
            make(packet)
        end
    end, {
        rate = rate, seconds = seconds, size = 128, stamp = false, receive = taut.port(2), listen = 0.3,
        on_receive = function(batch)
            for _, packet in ipairs(batch) do
                (is_right(packet) and done or other):add()
            end
        end,
    })
    taut.counter("sent"):add(result.sent)
    print(string.format("%s: sent %d, %d came back right, %d others", role, result.sent, done.value, other.value))
end

local function is_plain(packet, at)
    return packet.len == at + 60 and packet:u48(at) == inner_dst and packet:u48(at + 6) == inner_src
        and packet:u16(at + 12) == LOCAL_EXPERIMENT
end

if role == "encapsulate" then
    endpoint(function(packet) return packet.len >= 14 end, encapsulate)
elseif role == "decapsulate" then
    endpoint(is_vxlan, decapsulate)
elseif role == "plain" then
    test(plain, function(packet) return is_vxlan(packet) and is_plain(packet, OUTER) end)
elseif role == "tunnelled" then
    test(function(packet)
        plain(packet)
        encapsulate(packet)
    end, function(packet) return is_plain(packet, 0) end)
else
    error('role: "' .. role .. '": expected encapsulate, decapsulate, plain or tunnelled')
end
