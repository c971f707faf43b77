-- Joins its ports into one group by LACP (IEEE 802.1AX, clause 6.4), then sends load over all of them, as MoonGen's
-- lacp does. Linux is a partner: ip link add bond0 type bond mode 802.3ad.
--
--   taut script examples/lua/lacp.lua --port SPEC [--port SPEC ...] -- [RATE] [SECONDS] [MAC] [WAIT] [INTERVAL]

local SLOW_PROTOCOLS, GROUP = 0x8809, 0x0180c2000002
local KEY, PRIORITY = 1, 0xffff
local ACTIVE, SHORT, AGGREGATION, SYNC, COLLECTING, DISTRIBUTING = 1, 2, 4, 8, 16, 32
local FLOWS = 100
local FRAME_BYTES, ACTOR, PARTNER = 124, 16, 36

-- Writes the information of an actor or a partner: 20 bytes with type 1 or 2.
local function write(packet, at, kind, who)
    packet:set_u8(at, kind)
    packet:set_u8(at + 1, 20)
    packet:set_u16(at + 2, who.priority)
    packet:set_u48(at + 4, who.system)
    packet:set_u16(at + 10, who.key)
    packet:set_u16(at + 12, who.port_priority)
    packet:set_u16(at + 14, who.port)
    packet:set_u8(at + 16, who.state)
end

local function read(packet, at)
    return {
        priority = packet:u16(at + 2), system = packet:u48(at + 4), key = packet:u16(at + 10),
        port_priority = packet:u16(at + 12), port = packet:u16(at + 14), state = packet:u8(at + 16),
    }
end

local function has(who, flag)
    return math.floor(who.state / flag) % 2 == 1
end

function member(index, rate, seconds, system, wait, interval)
    local port = taut.port(index)
    local actor = {
        priority = PRIORITY, system = system, key = KEY, port_priority = PRIORITY, port = index,
        state = ACTIVE + SHORT + AGGREGATION,
    }
    local nobody = { priority = 0, system = 0, key = 0, port_priority = 0, port = 0, state = 0 }
    local partner = nobody

    local function craft(batch)
        for _, packet in ipairs(batch) do
            packet:set_bytes(0, ("\0"):rep(packet.len))
            packet.eth.dst, packet.eth.src, packet.eth.type = GROUP, system + index, SLOW_PROTOCOLS
            packet:set_u8(14, 1)
            packet:set_u8(15, 1)
            write(packet, ACTOR, 1, actor)
            write(packet, PARTNER, 2, partner)
            packet:set_u8(56, 3)
            packet:set_u8(57, 16)
        end
    end

    local function on_receive(batch)
        for _, packet in ipairs(batch) do
            if packet.len >= FRAME_BYTES - 14 and packet.eth.type == SLOW_PROTOCOLS and packet:u8(14) == 1 then
                partner = read(packet, ACTOR)
                local seen = read(packet, PARTNER)
                local knows = seen.system == system and seen.port == index and seen.key == KEY
                actor.state = ACTIVE + SHORT + AGGREGATION + (knows and SYNC or 0)
                if knows and has(partner, SYNC) then
                    actor.state = actor.state + COLLECTING + DISTRIBUTING
                end
            end
        end
    end

    -- `size` counts the check sequence, too.
    local pdus = taut.stream {
        name = "lacp", rate = 1 / interval, size = FRAME_BYTES + 4, priority = 1, stamp = false, craft = craft,
    }
    local begun = taut.now()
    local function is_up()
        return has(actor, COLLECTING) and has(partner, SYNC) and has(partner, COLLECTING)
    end
    while not is_up() and taut.now() - begun < wait and taut.running() do
        taut.run {
            stream = pdus, seconds = interval, send = port, receive = port, on_receive = on_receive,
            listen = interval / 2,
        }
    end
    if not is_up() then
        return false, taut.mac_text(partner.system), 0
    end
    local flow = 0
    local load = taut.stream {
        name = "load", rate = rate, dst_port = 4000, src_port = "3000-" .. (3000 + FLOWS - 1),
        craft = function(batch)
            for _, packet in ipairs(batch) do
                packet.udp.src_port = 3000 + flow
                flow = (flow + 1) % FLOWS
            end
        end,
    }
    local result = taut.run {
        streams = { load, pdus }, seconds = seconds, send = port, receive = port, on_receive = on_receive,
        listen = interval / 2,
    }
    taut.counter("sent over the group"):add(result.streams.load.sent)
    return is_up(), taut.mac_text(partner.system), result.streams.load.sent
end

function main()
    local rate, seconds = taut.args[1] or "100k", tonumber(taut.args[2] or "10")
    local system = taut.mac(taut.args[3] or "02:00:00:00:01:00")
    local wait, interval = tonumber(taut.args[4] or "30"), tonumber(taut.args[5] or "1")
    local tasks, joined = {}, taut.counter("ports in the group")
    for index = 1, taut.ports() do
        tasks[index] = taut.task(nil, "member", index, rate, seconds, system, wait, interval)
    end
    for index, task in ipairs(tasks) do
        local is_up, partner, sent = task:wait()
        joined:add(is_up and 1 or 0)
        local state = is_up and "in the group" or "alone"
        print(string.format("port %d: %s, partner %s, sent %d", index, state, partner, sent))
    end
end
