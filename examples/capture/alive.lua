-- Liveness of both ends of a flow: fires the trigger `dead` when one end sends while the other end, which has sent
-- before, has been silent for a while. Fires the trigger `alive` when the silent end sends again.
--
--     taut capture eth0 --dump dumps --trigger dead --trigger alive --before 10s --analyse alive.lua

local patience = taut.settings.seconds or 3

flow = { "last_1", "last_2", "dead_1", "dead_2" }
local last, dead = { "last_1", "last_2" }, { "dead_1", "dead_2" }

function analyse(packet, flow)
    if not flow then
        return
    end
    local side, now = packet.side, packet.seconds
    local other = 3 - side
    if flow[dead[side]] == 1 then
        flow[dead[side]] = 0
        trigger("alive", ("silent for %.1f s"):format(now - flow[last[side]]))
    end
    flow[last[side]] = now
    local heard = flow[last[other]]
    if heard > 0 and flow[dead[other]] == 0 and now - heard > patience then
        flow[dead[other]] = 1
        trigger("dead", ("nothing for %.1f s"):format(now - heard))
    end
end
