-- Find the store, or make it; begin a new incarnation if another process of the server answers than last time.
-- ARGV 1 run id of the server 2 id for a new store 3 id that the store is known to have, or ''
-- answer: {0, meta, form} | {9} the store that was known is not there
local D = KEYS[1]
local r = redis.call('HMGET', D, 'm', 'r', 'v')
local meta = r[1]
if not meta then
  if ARGV[3] ~= '' then return {9} end
  meta = ARGV[2] .. string.rep('\0', 8) .. string.rep('\0', 40)
elseif r[2] == ARGV[1] then
  return {0, meta, r[3]}
end
local time = redis.call('TIME')
local incarnation = math.max(time[1] * 1000000 + time[2], struct.unpack('>I8', meta, 9) + 1)
local fresh = not r[1]
meta = string.sub(meta, 1, 8) .. struct.pack('>I8', incarnation) .. string.sub(meta, 17)
if fresh then
  redis.call('HSET', D, 'm', meta, 'r', ARGV[1], 'v', '1', 's', string.rep('\0', 24))
else
  redis.call('HSET', D, 'm', meta, 'r', ARGV[1])
end
return {0, meta, r[3] or '1'}
