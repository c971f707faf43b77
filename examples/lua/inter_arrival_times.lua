-- Makes a histogram of the times between arrivals, as MoonGen's inter-arrival-times does. Times are those of the port's
-- timestamps if it has them (`stamps=`), else of the calls that received: packets of one call then have one time.
--
--   taut script examples/lua/inter_arrival_times.lua --port SPEC -- [SECONDS]

local seconds = tonumber(taut.args[1] or "10")
local gaps, together = taut.histogram("time between arrivals"), taut.counter("received in one call")
local last

taut.receive(taut.port(1), function(batch)
    for _, packet in ipairs(batch) do
        local at = packet.port_stamp or packet.arrived_ns
        if last == at then
            together:add()
        elseif last and at > last then
            gaps:record(at - last)
        end
        last = at
    end
end, { seconds = seconds })

for _, percent in ipairs { 0, 25, 50, 75, 99, 100 } do
    print(string.format("%3d %% within %.3f us", percent, (gaps:percentile(percent) or 0) / 1e3))
end
