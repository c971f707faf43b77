-- Replays a capture, again and again, at its times, or faster, or at a rate, as MoonGen's replay-pcap does. It reads a
-- file, so it takes --trust.
--
--   taut script examples/lua/replay.lua --trust --port SPEC -- FILE [SPEED] [SECONDS]

local file, speed = taut.args[1] or error("expected the name of a capture"), taut.args[2] or "1x"
local seconds = tonumber(taut.args[3] or "10")

-- `SPEED` is a factor such as 2x, or a rate such as 100k.
local factor = speed:match("^[%d.]+x$")
local result = taut.run {
    stream = taut.stream {
        frames = "trace", pattern = factor and "trace(" .. file .. ", " .. factor .. ")" or "trace(" .. file .. ")",
        rate = not factor and speed or nil,
    },
    send = taut.port(1), receive = taut.port(1), seconds = seconds,
}
print(string.format("sent %d frames in %.3f s", result.sent, result.seconds))
taut.counter("sent"):add(result.sent)
