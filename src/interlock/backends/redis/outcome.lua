-- What became of a transaction. ARGV 1 transaction 2 '1' fence it if it is unknown 3 '1' write again what is there
-- answer: {1, position of its commit} | {0} fenced | {-1} unseen | {-2} forgotten | {3, ''} no store
local D, k = KEYS[1], 'x' .. ARGV[1]
local r = redis.call('HMGET', D, 's', 'm', k)
if not r[2] then return {3, ''} end
if r[3] then
  -- A server that is asked to confirm copies confirms the asking connection's own writes only.
  if ARGV[3] == '1' then redis.call('HSET', D, k, r[3]) end
  if r[3] == 'A' then return {0} end
  return {1, (struct.unpack('>I8', r[3], 2))}
end
local a1, a2, a3 = struct.unpack('>I6I6I4', ARGV[1])
local b1, b2, b3 = struct.unpack('>I6I6I4', r[2], 41)
if a1 < b1 or (a1 == b1 and (a2 < b2 or (a2 == b2 and a3 <= b3))) then return {-2} end
if ARGV[2] ~= '1' then return {-1} end
local time = redis.call('TIME')
redis.call('HSET', D, k, 'A')
redis.call('ZADD', KEYS[6], math.max(time[1] * 1000 + math.floor(time[2] / 1000), a1), k)
return {0}
